"""Which layer gets which GPUs: pure functions from profiles to plans.

plan       Plan, LayerAssignment: the record
search     the exact search under a limit per layer
schedule   when each layer and each all-reduce runs, overlapping or not
overlap    the search where all-reduces overlap the backward pass
flow_shop  its exact part: layers one after another
pareto     fronts of iteration time against GPU-seconds
frontier   every efficient plan, and so the exact search under a limit per iteration
baselines  data parallelism and one GPU, priced by the same model
explain    why each layer got its GPUs
planner    a profile, a cluster and a limit → Plan
"""
