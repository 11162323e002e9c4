"""Pure decisions about jobs: records in, decisions out, time as an argument.

placement          which waiting job gets which GPUs of a cluster
gate               when a background may launch its next piece; runs in the background
pacing             limits of the pieces in flight and of the share of the time
governor           limits of a background in each iteration; runs on each rank of the foreground
background_limits  the limits that the governor sets and the gate applies
feedback           bans background launches during operators that they slow
controller         the share of the time at which a bound on the foreground's slowdown holds
trial              whether the background causes a slowdown of the foreground
slowdown           collocated iterations of the foreground against those alone
mechanism_ladder   the mechanisms of sharing, added one at a time
"""
