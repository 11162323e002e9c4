"""The searches for a plan: exact, published, memory-constrained, and whole frontiers.

search               exact search under a limit per layer
limited_costs        costs that it reads, with edges over the limit left out
optimality           the claim of optimality, and its factor
pareto               the filter of all searches: rows that no other row beats
labels               plans of a part of a model, and how their numbers add up
shortest_path        shortest paths through a series of layers
parallel_block       steps and tables of paths, by one recursion over the tree of chains and branches
block_bounds         lower bounds of all partitions of a block at once
block_evaluation     exact cost of a block
gpu_partition        partitions of the GPUs among branches, side by side or in sequence
local_search         regions that are not series-parallel
overlap              the fastest plan whose all-reduces overlap the backward pass
flow_shop            exact overlap for layers in sequence
efficient_plans      every efficient plan, and the search under a limit on the iteration
relaxed_frontier     sums of labels: bounds of all plans, and plans near to them
step_labels          labels of the steps, from searches at several prices of a GPU-second
sum_bounds           labels of which all sums are beaten by known ones
label_sums           efficient sums of labels along a model
frontier             record of all efficient plans
goal_query           the efficient plan that serves a goal best
memory_constrained   the fastest plan under a limit that fits into the memory of a GPU
published            search of the DeepPool paper
"""
