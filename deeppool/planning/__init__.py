"""Which layer gets which GPUs: pure functions from profiles to plans.

plan       Plan, LayerAssignment: the record
search     the exact search under a limit per layer
pareto     fronts of iteration time against GPU-seconds
frontier   every efficient plan, and so the exact search under a limit per iteration
baselines  data parallelism and one GPU, priced by the same model
explain    why each layer got its GPUs
price_list every GPU count of a layer and its price, as a record
published  the search that DeepPool's paper prints, for comparison
planner    a profile, a cluster and a limit → Plan
diff       what changes from one plan to another
live       a run's times → a corrected profile
replan     a plan and live times → the better plan, and the gain
tables     the text of diff, price_list and replan
accuracy   steps to a target accuracy by global batch: named, cited, replaceable
study      ScalingStudy, ScalingPoint: the record
scaling    weak, strong and batch-optimal scaling over GPUs and network speeds → ScalingStudy
"""
