"""The one place that knows CUDA from CPU.

common          Device: what the rest of the package sees
cpu             cores, pinning, priorities of the operating system
control_group   a core divided by weight
cuda            NVIDIA GPUs
datasheet       the peaks of GPUs that are not here
"""
