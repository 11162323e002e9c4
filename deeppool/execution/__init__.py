"""A plan, run for real: one process per rank, torch.distributed between them.

stages         Plan → stages: consecutive layers on the same GPUs
exchange       performs a reshard's transfers
gradient_sync  sums gradients over the ranks that computed them
trainer        one rank's share of every iteration
worker         the process of a rank
ranks          starts, commands and ends all ranks
monitor        spans of all ranks → timeline and stage times
"""
