"""Progress engine of partial all-reduces over TCP in C++, for rounds that Python's thread cannot keep up with.

build                compiles the sources on first use, and loads them
native_tcp           NativeTcpRounds: one rank's side, by the engine
engine.cpp           the thread, and the functions that Python calls
peers.hpp            messages read from and written to sockets; the bytes are those of ``transports/tcp.py``
participant.hpp      the state machine of ``collectives/partial/participant.py``
straggler_aware.hpp  that of ``collectives/partial/straggler_aware.py``
firing.hpp           the rule of ``collectives/partial/firing.py``
"""
