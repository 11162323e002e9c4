"""Layer times on the device at hand.

profile           dp.profile: a captured model to a Profile
bench             repeated iterations of a model on a device
iteration         one iteration, with a time stamp between layers
sampling          how many iterations are enough, and which of them count
concurrent_ranks  other cores that train at the same time; concurrent_rank is the process of one
"""
