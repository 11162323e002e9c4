"""Devices: everything that depends on CUDA or on the CPU.

protocol        Device, Stream and Launch: what the other packages use
find            the device of a kind: auto, cpu or cuda
clock           the time of the threads that launch
event_times     times of what happens on a device, and waits; cuda_event_times are those by a GPU's clock
transfer        tensors as the library of collectives takes them
host_buffer     host memory through which tensors pass to code that knows only the host's
kinds           facts of a kind of device
environment     description of this machine
cpu             cores, pinning, priorities of the operating system
profiler_ranges named ranges for torch's profiler and NVTX
threads         the threads with which torch computes on the CPU
control_group   a core divided by weight
heap            memory that a training frees, and its process keeps
cuda            NVIDIA GPUs
emulated        an accelerator emulated in threads of the CPU
sm_share        a part of a GPU for one job
multiprocessors    how kernels share the multiprocessors of a GPU, with the time as an argument
kernel             a kernel on a GPU, by FLOPs and bytes
kernels            an operator to its kernels
roofline           seconds and thread blocks of a kernel, by a data sheet
calibration        seconds of a kernel, by rates that were measured here
background_stream  the stream of a background job
driver          what only the CUDA driver tells
numa            the cores beside a GPU
nvml            GPU data from the driver
abilities       what each GPU can do for two jobs
datasheet       the peaks of GPUs that are not here
"""
