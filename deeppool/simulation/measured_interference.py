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
from deeppool.profiling.pairs.waits import WAITS, check_waits, measure_waits
from deeppool.simulation.interference import Beside, Interference
from deeppool.simulation.waits import Waits
from deeppool.under_way import announced

PAIRS_IN_A_WAIT = 20
"""A background's training does few steps in short waits, so each length is measured as long as so many pairs."""


@announced
def measure_interference(
    *,
    device: str = "auto",
    matrices: Sequence[int] | None = None,
    durations: Sequence[float] | None = None,
    arrangements: Sequence[str] | None = None,
    waits: Sequence[float] = WAITS,
    seconds: float = 0.2,
    rounds: int = 3,
    on_progress: Progress | None = None,
) -> Interference:
    """Every kernel alone and beside every other, as DeepPool's figure 12 has it.

    On a CPU the foreground is a process on the first core; the background is another one, on the same core at each
    priority, or on a second core. On a GPU both are streams of one process. Nothing else may run meanwhile.

    On a CPU also what a background at the lowest priority gets done while a foreground waits, with two trainings.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
        matrices: rows of the square matrices of the products; beside them there are sums of vectors.
        durations: seconds that a kernel takes alone.
        arrangements: ``normal``, ``nice``, ``lowest`` and ``other core`` on a CPU, ``normal`` and ``lowest`` on a GPU;
            all of them unless given.
        waits: seconds for which a foreground waits, measured on a CPU where ``lowest`` is among the arrangements.
        seconds: of each pair in each round; of each wait twenty times as long.
        rounds: whose median counts.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: kernels, arrangements, waits, seconds or rounds that there cannot be.
        RunError: a process died.
        DeviceUnavailableError: CUDA was asked for and is not there.
    """
    if not seconds > 0 or rounds < 1:
        raise InvalidValueError(f"seconds must be positive and rounds at least 1, got {seconds:g} and {rounds}")
    found = find_device(device)
    report = on_progress or (lambda what, share: None)
    chosen, lengths = kinds(found.kind, matrices, durations), check_waits(waits)
    report("starting", 0.0)
    with (Cuda if found.kind == "cuda" else Cpu)(chosen, arrangements) as bench:
        names = list(bench.arrangements)
        with_waits = found.kind == "cpu" and "lowest" in names and bool(lengths)
        pairs = (len(names) + 0.5) * len(chosen) ** 2
        part = pairs / (pairs + with_waits * 1.5 * PAIRS_IN_A_WAIT * len(lengths))
        rates = measure_rates(bench, len(chosen), seconds, rounds, lambda x: report("pairs of kernels", part * x))
    measured = None
    if with_waits:
        harvest = measure_waits(
            lengths, PAIRS_IN_A_WAIT * seconds, rounds, lambda x: report("waits", part + (1 - part) * x)
        )
        measured = Waits(lengths, harvest)
    report("done", 1.0)
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
        waits=measured,
    )
