"""Training in one process: the definition of a job and the computation of its step.

training_job    TrainingJob: model, loss, data and optimizer
step            TrainingStep: compute, start_sync, finish_sync, update
value_flow      values between parts, and their gradients
gradient_sum    the sum of gradients over ranks
segment_run     forward and backward of a part of the model
layer_ranges    the same layer by layer, while a profiler records
graph_replay    the same as graphs of the device
bucket          buckets of parameters, and the announcement of complete ones
update          optimizer, clipping, loss scale and schedule
group_state     steps of some parameters, and state that an optimizer keeps in its groups
small_copy      a small copy of an optimizer, to try its steps
momentum_sgd    the optimizer of models by name
synthetic_task  a learnable task for any classifier
data            samples of a dataset for each rank
sampler         order of the samples by a sampler of the user's own
random_state    the global random numbers of a process, seeded and restored
batch_check     whether the samples fit the captured model and its loss
precision       autocast, and the types of transferred tensors
dropout         masks that depend on the sample and not on the plan
"""
