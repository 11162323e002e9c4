"""Synthetic kernels beside one another on this machine → :class:`Interference`."""

import datetime
from collections.abc import Sequence

import torch

from deeppool.device.common import find_device
from deeppool.errors import InvalidValueError
from deeppool.job import Progress
from deeppool.profiling.pairs.on_cpu import Cpu
from deeppool.profiling.pairs.on_gpu import Cuda
from deeppool.profiling.pairs.rounds import measure_rates
from deeppool.profiling.pairs.synthetic import kinds
from deeppool.simulation.interference import Beside, Interference


def measure_interference(
    *,
    device: str = "auto",
    matrices: Sequence[int] | None = None,
    durations: Sequence[float] | None = None,
    arrangements: Sequence[str] | None = None,
    seconds: float = 0.2,
    rounds: int = 3,
    on_progress: Progress | None = None,
) -> Interference:
    """Every kernel alone and beside every other, as DeepPool's figure 12 has it.

    On a CPU the foreground is a process on the first core; the background is another one, on the same core at each
    priority, or on a second core. On a GPU both are streams of one process. Nothing else may run meanwhile.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
        matrices: rows of the square matrices of the products; beside them there are sums of vectors.
        durations: seconds that a kernel takes alone.
        arrangements: ``normal``, ``nice``, ``lowest`` and ``other core`` on a CPU, ``normal`` and ``lowest`` on a GPU;
            all of them unless given.
        seconds: of each pair in each round.
        rounds: whose median counts.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: kernels, arrangements, seconds or rounds that there cannot be.
        RunError: a background cannot have its priority here, or a process died.
        DeviceUnavailableError: CUDA was asked for and is not there.
    """
    if not seconds > 0 or rounds < 1:
        raise InvalidValueError(f"seconds must be positive and rounds at least 1, got {seconds:g} and {rounds}")
    found = find_device(device)
    report = on_progress or (lambda what, share: None)
    chosen = kinds(found.kind, matrices, durations)
    report("starting", 0.0)
    with (Cuda if found.kind == "cuda" else Cpu)(chosen, arrangements) as bench:
        names = list(bench.arrangements)
        rates = measure_rates(bench, len(chosen), seconds, rounds, lambda share: report("pairs of kernels", share))
    return Interference(
        device_name=found.name,
        date=datetime.date.today().isoformat(),
        method=f"{rounds} round{'s' * (rounds > 1)} of {seconds:g} s a pair, medians, torch {torch.__version__}",
        intensities=tuple(dict.fromkeys(kind.intensity for kind in chosen)),
        durations=tuple(dict.fromkeys(kind.seconds for kind in chosen)),
        arrangements=tuple(
            Beside(name, *(tuple(map(tuple, pairs.tolist())) for pairs in both))
            for name, both in zip(names, rates, strict=True)
        ),
    )
