"""Devices: everything that depends on CUDA or on the CPU.

protocol        Device, Stream and Launch: what the other packages use
find            the device of a kind: auto, cpu or cuda
environment     description of this machine
cpu             cores, pinning, priorities of the operating system
control_group   a core divided by weight
heap            memory that a training frees, and its process keeps
cuda            NVIDIA GPUs
sm_share        a part of a GPU for one job
nvml            GPU data from the driver
abilities       what each GPU can do for two jobs
datasheet       the peaks of GPUs that are not here
"""
