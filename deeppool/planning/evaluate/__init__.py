"""Costs of a plan: placement, schedule, memory, baselines and a lower bound.

placement      cost of each layer on its GPUs
alternatives   cost of other GPU counts for one layer
gpu_sets       sets of GPUs, and which branches run side by side
timing         duration of a pass on given GPUs
channels       start times of all-reduces, and what they slow down
schedule       start times of layers and all-reduces, overlapping or not
memory         memory of each GPU
memory_shortage  the error of plans that do not fit
baselines      a plan beside data parallelism in the same cost model, on as many GPUs as that is fastest on
data_parallel  data parallelism as a plan
lower_bound    lower bound of all plans, by potentials along a path
"""
