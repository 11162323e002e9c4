"""Training in one process: the definition of a job and the computation of its step.

training_job    TrainingJob: model, loss, data and optimizer
synthetic_task  a learnable task for any classifier
data            samples of a dataset for each rank
sampler         order of the samples by a sampler of the user's own
batch_check     whether the samples fit the captured model and its loss
precision       autocast, and the types of transferred tensors
dropout         masks that depend on the sample and not on the plan
"""
