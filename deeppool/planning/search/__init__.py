"""The searches for a plan: exact, published, memory-constrained, and whole frontiers.

search               exact search under a limit per layer
limited_costs        costs that it reads, with edges over the limit left out
optimality           the claim of optimality, and its factor
shortest_path        shortest paths through a series of layers
parallel_block       the step from a fork to its join: bounds for branches on GPU partitions
branch_bounds        bounds of one branch on every GPU group
block_bounds         lower bounds of all partitions of a block at once
block_evaluation     exact cost of a block
gpu_partition        partitions of the GPUs among branches, side by side or in sequence
label_bundle         labels of several branches together
local_search         regions that are not series-parallel
overlap              the fastest plan whose all-reduces overlap the backward pass
flow_shop            exact overlap for layers in sequence
price_sweep          efficient plans whose all-reduces overlap the backward pass
as_run               the fastest of them that fits into the memory of a GPU
label_sums           efficient sums of labels along a model
goal_query           the efficient plan that serves a goal best
frontier             every efficient plan, and the search under a limit on the iteration
frontier_dp          efficient labels of each part of a model
labels               labels as arrays of seconds and GPU-seconds
pareto               Pareto fronts of a chain
memory_constrained   the fastest plan that fits into the memory of a GPU
lagrangian_bound     lower bound where GPU-seconds have a price
published            search of the DeepPool paper
"""
