"""Telemetry: samples of the devices and the processes of a run.

record      Sample, Telemetry and its summary
gpu_meter   GPUs, by the driver's management library
cpu_meter   cores and processes, by psutil
run_delay   how long this process's threads wait for a core, by the kernel
sampler     the thread
"""

from deeppool.telemetry.record import Sample, Telemetry
from deeppool.telemetry.sampler import Sampler

__all__ = ["Sample", "Sampler", "Telemetry"]
