"""The searches for a plan: exact, published, memory-constrained, and whole frontiers.

A model is a series of layers, and of *blocks*: branches between a fork and their join. A plan gives each layer a number
of GPUs, and each block a partition of the GPUs into *groups* of adjacent ones. Branches of one group run one after
another, groups run side by side:

                                            GPU 3 ┌──────────┐
             ┌─ branch 0 ─┐                 GPU 2 │ branch 1 │           ┌────────
        fork ┼─ branch 1 ─┼ join            GPU 1 ├──────────┴┬──────────┤  join
             └─ branch 2 ─┘                 GPU 0 │ branch 0  │ branch 2 │
                                                  └───────────┴──────────┴── time

    groups {0, 2} on GPUs 0-1, {1} on GPUs 2-3

A *label* is a way to compute a part of the model, with the numbers that decide which way is better:

    (seconds forward, seconds backward, GPU-seconds, transfers to the join)
    branch 0  (2, 4, 12, 1)  ┐ one after another: +            ┐ side by side: the longer pass counts,
    branch 2  (1, 2,  6, 1)  ┘ (3, 6, 18, 2)                   │ GPU-seconds and transfers add up:
    branch 1  (3, 5, 16, 1)                                    ┘ (3, 6, 34, 3)

Of labels with the same GPUs before and after, only those stay that no other one beats in every number (``pareto``).

Most labels are never computed. For every block a lower bound is known at once, for all partitions and GPU counts
(``block_bounds``). The search takes the shortest path through the model (``shortest_path``), computes the labels of the
blocks on it (``block_evaluation``), and repeats until all blocks on the shortest path are computed: no other path can
then be shorter. All questions read the same labels: the fastest plan within a limit per layer, or at a price of a
GPU-second, of which the whole frontier consists; or at a price of a byte, for plans that fit into memory.

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
elimination          the least sum of tables that depend on a few of many variables
overlap              the fastest plan whose all-reduces overlap the backward pass
flow_shop            exact overlap for layers in sequence, with buckets
flow_shop_labels     its ways through the last layers
flow_shop_bounds     what the layers to come add at least to them
flow_shop_tied       its tied parameters
hill_climbing        small changes of a plan that make it faster
efficient_plans      every efficient plan, and the search under a limit on the iteration
relaxed_frontier     sums of labels: bounds of all plans, and plans near to them
step_labels          labels of the steps, from searches at several prices of a GPU-second
price_bounds         what no plan takes less than at many prices of a GPU-second
sum_bounds           labels of which all sums are beaten by known ones
label_sums           efficient sums of labels along a model
frontier             record of all efficient plans
goal_query           the efficient plan that serves a goal best
memory_constrained   the fastest plan under a limit that fits into the memory of a GPU
published            search of the DeepPool paper
"""
