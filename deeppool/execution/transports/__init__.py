"""Transports of partial collectives: what joins their pure code to processes, threads and the clock.

shared_memory  SharedMemoryRounds: ranks of one host; whichever rank sees that a round fires performs it
tcp_peers      connections of a rank to all others
tcp            TcpRounds: ranks of several hosts; a thread of each rank delivers messages
native         the same by a thread in C++, which understands the other
tcp_engine     the choice between them
received       what a call returns, over any transport
futex          waiting for a change of shared memory
file_lock      a lock between processes and threads that the system releases when its holder dies
"""
