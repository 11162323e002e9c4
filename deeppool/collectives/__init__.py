"""Transfers between GPUs: schedules as data, priced by ``costs``, performed by ``perform``, drawn by ``figures``.

schedule          Schedule: the steps of each rank, and what each waits for
simulate          symbolic simulation of a schedule: its result, and its freedom from deadlocks
patterns          schedules: ring, halving-doubling, parameter server and others
partial           all-reduces that do not wait for every rank
perform           performs a schedule on tensors over torch.distributed
buckets           which gradients one all-reduce sums
batching          which gradients travel together, from their moments and the network
ordering          in which order transfers are sent
plan_transfers    the transfers of an iteration: batches, patterns and order
candidate_plans   some of them that may be the fastest, to be tried
given_plan        checks one that a user gives
transfer_methods  the same by the rules of DDP, Horovod, DeAR and parameter servers
layout            Layout: which samples of a global batch lie on which GPU
reshard           the transfers from one layout to another
"""
