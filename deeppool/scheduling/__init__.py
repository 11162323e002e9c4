"""Decisions about jobs, pure: what is known goes in as records, what shall be done comes out.

placement    which waiting job gets which GPUs of a cluster
gate         when a background may launch its next piece; asked inside the background
pacing       how much of it may be in flight, and how much of the time it may have
governor     what a background may do in each iteration; asked beside each rank of the foreground
orders       what the governor tells the gate
feedback     which operators of the foreground nothing may run beside
ladder       the mechanisms, one more on each rung
controller   the share of the time at which a bound on the foreground's slowdown holds
trial        whether it is the background that slows the foreground down
slowdown     the foreground collocated against alone
"""
