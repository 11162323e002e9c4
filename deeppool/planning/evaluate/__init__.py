"""What a plan costs: placement, schedule, memory and baselines.

placement      what each layer costs on its GPUs
timing         how long an iteration takes on given GPUs
schedule       when each layer runs, all-reduces overlapping or not
memory         what each GPU holds under a plan
baselines      data parallelism in the same cost model
data_parallel  data parallelism as a plan
"""
