"""Telemetry records: samples of this machine's devices and of a run's processes."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from deeppool.errors import InvalidValueError
from deeppool.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class GpuSample:
    """Sample of one GPU; a field is None if the GPU or its driver does not report it."""

    memory: int | None
    """Bytes in use by all processes."""
    utilisation: float | None
    """Share of the driver's last sampling period in which any kernel ran: whether it was busy, not how busy."""
    sm_activity: float | None
    """Share of the multiprocessors that were busy since the last sample, by the GPU's performance monitors."""
    power: float | None
    """Power draw in watts."""
    energy: float | None
    """Energy in joules since the first sample."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Sample of one process of the run."""

    pid: int
    name: str
    """Module that it runs, or the program."""
    memory: int
    """Resident set size in bytes."""
    cpu: float
    """CPU time since the last sample, in cores: 1.0 is one core."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample of the machine at one moment."""

    time: float
    """Seconds since sampling began."""
    gpus: tuple[GpuSample, ...]
    cores: tuple[float, ...]
    """Share of the time since the last sample in which each core that this process may use was busy, with any
    process."""
    memory_available: int
    """Bytes that the operating system would give without swapping."""
    processes: tuple[ProcessSample, ...]
    """Samples of this process first, then of its descendants."""


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """Summary of one device over all samples."""

    name: str
    utilisation: float | None
    """Mean utilisation, or None."""
    sm_activity: float | None = None
    """Mean share of busy multiprocessors, or None."""
    peak_memory: int | None = None
    """Peak memory in bytes, or None."""
    power: float | None = None
    """Mean power in watts, or None."""
    energy: float | None = None
    """Energy in joules, or None."""

    def __str__(self) -> str:
        parts = [
            "" if self.utilisation is None else f"busy {100 * self.utilisation:.0f} %",
            "" if self.sm_activity is None else f"multiprocessors {100 * self.sm_activity:.0f} %",
            "" if self.peak_memory is None else f"at most {format_bytes(self.peak_memory)}",
            "" if self.power is None else f"{self.power:.0f} W",
            "" if self.energy is None else f"{self.energy:.0f} J",
        ]
        return f"{self.name}: {', '.join(part for part in parts if part) or 'nothing known'}"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Telemetry of a machine: all samples with their metadata."""

    KIND: ClassVar[str] = "telemetry"

    started: str
    """Start of the sampling, in UTC."""
    interval: float
    """Requested seconds between two samples."""
    gpus: tuple[str, ...]
    gpu_problem: str | None
    """Reason why there are no GPUs, or None."""
    cores: tuple[int, ...]
    """Numbers of the cores, in the order of a sample."""
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        for sample in self.samples:
            if (len(sample.gpus), len(sample.cores)) != (len(self.gpus), len(self.cores)):
                raise InvalidValueError(
                    f"the sample at {sample.time:g} s has {len(sample.gpus)} GPUs and {len(sample.cores)} cores, "
                    f"expected {len(self.gpus)} and {len(self.cores)}"
                )

    def summary(self) -> tuple[DeviceSummary, ...]:
        """Returns a summary of each GPU, then of each core."""
        gpus = tuple(self._gpu(index, name) for index, name in enumerate(self.gpus))
        return gpus + tuple(
            DeviceSummary(f"core {core}", _mean(sample.cores[index] for sample in self.samples))
            for index, core in enumerate(self.cores)
        )

    def _gpu(self, index: int, name: str) -> DeviceSummary:
        def over(statistic: Callable[[GpuSample], float | None]) -> list[float]:
            return [value for sample in self.samples if (value := statistic(sample.gpus[index])) is not None]

        memory, energy = over(lambda gpu: gpu.memory), over(lambda gpu: gpu.energy)
        return DeviceSummary(
            f"GPU {index} ({name})",
            _mean(over(lambda gpu: gpu.utilisation)),
            _mean(over(lambda gpu: gpu.sm_activity)),
            int(max(memory)) if memory else None,
            _mean(over(lambda gpu: gpu.power)),
            energy[-1] if energy else None,
        )

    def __str__(self) -> str:
        took = self.samples[-1].time if self.samples else 0.0
        rows = [f"{len(self.samples)} samples over {format_seconds(took)}"]
        rows += [f"no GPU: {self.gpu_problem}"] if self.gpu_problem else []
        return "\n".join(rows + [str(device) for device in self.summary()])


def _mean(values: Iterable[float]) -> float | None:
    held = list(values)
    return statistics.fmean(held) if held else None
