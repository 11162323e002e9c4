"""Partial collectives: all-reduces that do not wait for every rank. Pure code: time is an argument.

firing          FiringRule: when a round fires, given who has arrived; solo, majority, quorum, full
state           RoundState: send buffers, results and counters of all ranks, as arrays in one block of memory
rounds          Rounds: the operations on that state; who performs a round, and what it takes
participant     Participant: one rank without shared memory, as a state machine of messages
straggler_aware  StragglerAwareParticipant: the same for an exact all-reduce that sums while it waits for the last rank
activation      Activation: the broadcast by which the rank that fires a round starts it on all others
convergence     ConvergenceBound: learning rate and updates that the paper's theorem guarantees
load_imbalance  delays of ranks: fixed, rotating, one random rank, or drawn from reported distributions
"""
