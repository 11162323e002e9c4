"""Waves of one training: what one wave leaves unused during its backward, another one uses for its forward.

(Wang et al., "Wavelet: Efficient DNN Training with Tick-Tock Scheduling", MLSys 2021)

data_parallel  settings of training with two replicas on each rank, for ``dp.train(gradient_sync=…)``
driver         its iterations: the order of both waves, their averages and their sums
wave           one replica: its step, its stream and its thread
"""
