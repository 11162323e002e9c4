"""Layer times from a data sheet or a calibration, without running the model.

estimate    dp.estimate: a model and a GPU to a Profile
layer_work  a model to the kernels of its layers, on tensors without data
source      seconds of kernels by a data sheet, or by the calibration of a device

Kernels and their seconds are those of :mod:`deeppool.device.kernels` and :mod:`deeppool.device.roofline`.
"""
