"""Runs a plan: one process per rank, connected by torch.distributed.

ranks               starts, commands and ends all ranks
worker              entry point of a rank's process
rank                one rank: its trainer and its commands
training_task       what a process trains: model, rule and samples
trainer             one rank's share of every iteration
stages              plan → stages: consecutive layers on the same GPUs
flow                activations and gradients between stages
exchange            performs a reshard's transfers
communicator        communication with the other ranks
emulated_rank       a communicator whose other ranks are emulated
replay_schedule     when a rank may start its work, by the plan's schedule
gradient_sync       sums gradients over the ranks that computed them
batch_norm          statistics over all shards of a batch
cuda_graphs         stages as CUDA graphs
update              clipping, loss scaling, the optimizer's step
checkpoint          a training's state on disk
checkpoint_folder   checkpoints of a training: which one to resume from, when to write the next one
foreground_control  limits of the background that shares a rank's device
failure_report      description of the exception that ends a rank
measurements        spans of all ranks → timeline and stage times
"""
