"""Waves of one training: what one wave leaves unused, another one uses.

(Wang et al., "Wavelet: Efficient DNN Training with Tick-Tock Scheduling", MLSys 2021)

data_parallel  settings of training with two replicas on each rank, for ``dp.train(gradient_sync=…)``
driver         its iterations: the order of both waves, their averages and their sums
wave           one replica: its step, its stream and its thread
model_parallel partitions that rotate over the ranks, each of which trains another batch
rotation       the partitions, and which rank computes what in which phase
weight_stream  weights that other ranks have only while they compute with them
step_time      predicted times of such a step, and how many waves fit into memory
tick_tock_time predicted time of an iteration in two waves, simulated event by event
predict        both from a profile and a cluster
"""
