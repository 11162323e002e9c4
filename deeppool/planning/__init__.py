"""Plans: which GPUs compute each layer. Pure functions from profiles to plans.

planner           dp.plan and dp.frontier: a profile, a cluster and a limit → Plan
request           validation of a request, and the costs that its search reads
best_buckets      the size of gradient buckets that suits a model and a network
quick_plan        a plan within a moment, to show while the search goes on
assembly          the GPUs that a search chose → Plan
plan              Plan, the record
noise             keeps data parallelism where a plan gains less than the profile can tell
goal              goals other than the least iteration time, and the background job that one of them counts
layer_assignment  LayerAssignment and AlternativeCost, the records of one layer
check             dp.check: times, limits and claim of a plan, without the search
renumber_gpus     a plan without the GPUs that it does not use

search       the searches: exact, published, by memory, whole frontiers
evaluate     costs of a plan: placement, schedule, memory, baselines
report       plans as text: reasons, alternatives, differences, summary
replanning   a plan and measured times → a corrected profile and the best plan for it
studies      questions over many plans: scaling, collocation trade-off
"""
