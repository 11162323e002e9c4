"""Layer times: measured on a device, or estimated and marked so.

table     Profile: times of every layer at several per-GPU batches, a plain record
measure   a captured model → Profile, on the device at hand
estimate  a model and a GPU's data sheet → Profile, with no GPU
work      a layer → its kernels, on tensors without data
kernels   an operator → its kernels, their FLOPs and bytes
roofline  seconds of a kernel from a data sheet
store     what an interrupted measurement keeps
"""
