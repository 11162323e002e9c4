"""Layer times from a data sheet, without the GPU.

estimate    dp.estimate: a model and a GPU to a Profile
layer_work  a model to the kernels of its layers, on tensors without data

Kernels and their seconds are those of :mod:`deeppool.device.kernels` and :mod:`deeppool.device.roofline`.
"""
