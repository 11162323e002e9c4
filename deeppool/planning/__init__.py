"""Which layer gets which GPUs: pure functions from profiles to plans.

plan       Plan, LayerAssignment: the record
search     the exact search under a limit per layer
memory     what each GPU holds under a plan
fitting    the fastest plan that fits into the GPUs' memory
pareto     fronts of iteration time against GPU-seconds
frontier   every efficient plan, and so the exact search under a limit per iteration
baselines  data parallelism and one GPU, priced by the same model
explain    why each layer got its GPUs
planner    a profile, a cluster and a limit → Plan
"""
