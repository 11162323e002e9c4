"""Which layer gets which GPUs: pure functions from profiles to plans.

plan            Plan, LayerAssignment: the record
planner         a profile, a cluster and a limit → Plan

search          the exact search under a limit per layer
prices          what it asks of a cost table
ways            shortest ways through a series of layers
crossing        from a fork to its join: bounds for branches in lanes
reach           one branch of a block in every lane
settling        the real price of a crossing
lanes           how branches share the GPUs, side by side or in sequence
bundle          ways through several branches together
overlap         the fastest plan whose all-reduces overlap the backward pass
flow_shop       exactly, where layers follow one another
knot            layers that no branches describe
frontier        every efficient plan, and so the search under a limit per iteration
fronts          the efficient ways of each part of a model, branches in all lanes
menus           ways as arrays of seconds and GPU-seconds
pareto          the same of a chain
fitting         the fastest plan that fits into the GPUs' memory
memory          what each GPU holds under a plan
relaxation      what no plan can beat when GPU-seconds have a price
published       the search that DeepPool's paper prints, for comparison
baselines       data parallelism, priced by the same model
data_parallel   it as a plan, to simulate or to run
halved          a plan with the same gaps on every machine

placement       what each layer of a plan costs where it runs
timing          how long an iteration takes on given GPUs
schedule        when each layer runs, all-reduces overlapping or not
explain         why each layer got its GPUs
summary         a plan in three sentences
price_list      every GPU count of a layer and its price, as a record
diff            what changes from one plan to another
live            a run's times → a corrected profile
replan          a plan and live times → the better plan, and the gain
tables          the text of diff, price_list and replan

shared_cluster  SharedCluster: foreground speed-up against cluster throughput, and answers from it
share           two profiles and a cluster → SharedCluster
accuracy        steps to a target accuracy by global batch: named, cited, replaceable
study           ScalingStudy, ScalingPoint: the record
scaling         weak, strong and batch-optimal scaling over GPUs and network speeds → ScalingStudy
"""
