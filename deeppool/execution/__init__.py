"""A plan, run for real: one process per rank, torch.distributed between them.

stages         Plan → stages: consecutive layers on the same GPUs
flow           which values go to which stage, and back
peers          the other ranks: real ones, or none
turns          when one rank may go on, by the plan's schedule
emulated       other ranks that are not there
exchange       performs a reshard's transfers
gradient_sync  sums gradients over the ranks that computed them
graphed        stages as CUDA graphs
training       how gradients become updates: a user's choice
trainer        one rank's share of every iteration
precision      autocast, and the types that travel
dropout        masks that depend on the sample and not on the plan
batch_norm     statistics over all shards of a batch
update         clipping, loss scaling, the optimizer's step
work           what a process trains: model, rule and samples
data           which samples a rank reads
checkpoint     a training's state on disk
checkpoint_folder  checkpoints of a training: which one to resume from, when to write the next one
governing      what a rank tells and orders the background beside it
worker         the process of a rank
failure        what a rank tells of the exception that ends it
ranks          starts, commands and ends all ranks
monitor        spans of all ranks → timeline and stage times
"""
