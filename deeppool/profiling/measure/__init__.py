"""Layer times on this machine's device.

profile           dp.profile: a captured model to a Profile
bench             repeated iterations of a model on a device
iteration         one iteration, with a time stamp between layers
stamp_cost        what a time stamp inside a graph costs
sampling          number of iterations to measure, and their mean and spread
update            the optimizer's update
concurrent_ranks  processes that train on other cores at the same time; concurrent_rank is one process
"""
