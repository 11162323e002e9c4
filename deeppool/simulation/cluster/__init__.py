"""A cluster of many jobs on a virtual clock.

simulate       dp.simulate_cluster: a workload trace to a ClusterSimulation
workload       WorkloadTrace
public_traces  workloads of published traces: Philly, Helios, Alibaba PAI
engine         the events
jobs           the remaining work and rate of each job
job_costs      costs of jobs, alone and collocated
history        the recorded intervals
record         the record
comparison     a workload under every strategy
"""
