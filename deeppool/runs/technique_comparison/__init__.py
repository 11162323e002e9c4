"""Techniques and today's baselines on one workload, live: the same job on the same ranks, one way after the other.

names    names of the ways, which technique each is, and how its training differs
compare  compare_techniques: measures ways by turns
rank     the process of one rank
steps    a step of each way on one rank
timeline the spans of a round
pipeline partitions of a model as stages of torch.distributed.pipelining
"""
