"""The one place that knows CUDA from CPU.

common      Device: what the rest of the package sees
cpu         cores, pinning, priorities of the operating system
cuda        NVIDIA GPUs
nvml        what their driver says of them
datasheet   the peaks of GPUs that are not here
"""
