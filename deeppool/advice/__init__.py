"""``dp.advise``: which technique is worth it for a model on a cluster.

advise      profile, baseline, plans, and what each technique gains
layer_times  profile, estimate or measurement that the advice starts from
techniques  one finding per technique, from the same prices as a plan
verdict     which technique helps on one workload, once ways to train it were measured
card        the card that ends a run or a training
record      the advice: verdict, evidence and next step of each technique
"""
