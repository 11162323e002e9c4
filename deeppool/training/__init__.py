"""One training process: what a job is and how its step computes.

training_job    TrainingJob: model, loss, data and optimizer
synthetic_task  a learnable task for any classifier
data            which samples of a dataset a rank reads
precision       autocast, and the types that travel
dropout         masks that depend on the sample and not on the plan
"""
