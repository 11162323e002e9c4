"""A cluster of many jobs on a virtual clock.

simulate    dp.simulate_cluster: a workload trace to a ClusterSimulation
workload    WorkloadTrace
engine      the events
jobs        what each job has still to train
job_costs   what jobs cost, alone and beside one another
history     what happened, as it happens
record      the record
comparison  a workload under every strategy
"""
