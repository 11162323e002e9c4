"""Layer times from a data sheet, without the GPU.

estimate    dp.estimate: a model and a GPU to a Profile
layer_work  a layer to its kernels, on tensors without data
kernels     an operator to its kernels, with FLOPs and bytes
roofline    seconds of a kernel
"""
