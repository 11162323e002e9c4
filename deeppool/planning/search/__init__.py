"""The searches for a plan: exact, published, by memory, by frontier.

search               the exact search under a limit per layer
limited_costs        the costs that it reads, with edges over the limit left out
shortest_path        shortest paths through a series of layers
parallel_block       from a fork to its join: bounds for branches on GPU partitions
branch_bounds        one branch of a block on every GPU group
block_bounds         lower bounds of all partitions of a block at once
block_evaluation     the exact cost of a block
gpu_partition        how branches share the GPUs, side by side or in sequence
label_bundle         labels of several branches together
local_search         regions that are not series-parallel
overlap              the fastest plan whose all-reduces overlap the backward pass
flow_shop            exact overlap where layers follow one another
frontier             every efficient plan, and so the search under a limit per iteration
frontier_dp          the efficient labels of each part of a model
labels               labels as arrays of seconds and GPU-seconds
pareto               Pareto fronts of a chain
memory_constrained   the fastest plan that fits into the memory of a GPU
lagrangian_bound     a lower bound where GPU-seconds have a price
published            the search of the DeepPool paper
"""
