"""Which layer gets which GPUs: pure functions from profiles to plans.

plan            Plan, LayerAssignment: the record
search          the exact search under a limit per layer
pareto          fronts of iteration time against GPU-seconds
frontier        every efficient plan, and so the exact search under a limit per iteration
baselines       data parallelism and one GPU, priced by the same model
explain         why each layer got its GPUs
planner         a profile, a cluster and a limit → Plan
shared_cluster  SharedCluster: foreground speed-up against cluster throughput, and answers from it
share           two profiles and a cluster → SharedCluster
"""
