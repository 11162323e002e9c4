"""Measures synthetic kernels beside one another on this machine → :class:`Interference`."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.number_checks import positive_number, whole_number
from deeppool.base.run_registry import registered
from deeppool.collocation.interference.cpu_bench import CpuBench
from deeppool.collocation.interference.pair_rates import measure_rates
from deeppool.collocation.interference.stream_bench import StreamBench
from deeppool.collocation.interference.synthetic_kernels import KernelSpec, kernel_sizes, kernel_specs
from deeppool.collocation.interference.transfers import RANKS, measure_transfers
from deeppool.collocation.interference.waits import WAITS, check_waits, measure_waits
from deeppool.device.cuda import all_hardware_queues
from deeppool.device.find import find_device
from deeppool.device.kinds import DeviceName, find_kind
from deeppool.job import Progress
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.units import format_seconds

PAIRS_IN_A_WAIT = 20
"""Multiple of a pair's seconds for which each length of wait, and transfers, are measured, as a background's training
does few steps in short waits."""
OTHER_TIME = 0.2
"""Part of its class's duration by which the time of a kernel must differ to be told."""


@interruptible
@typed
@registered
@all_hardware_queues()
def measure_interference(
    *,
    device: DeviceName = "auto",
    matrices: Sequence[int] | None = None,
    durations: Sequence[float] | None = None,
    arrangements: Sequence[str] | None = None,
    waits: Sequence[float] = WAITS,
    seconds: float = 0.2,
    rounds: int = 3,
    on_progress: Progress | None = None,
) -> Interference:
    """Measures every kernel alone and beside every other, as in DeepPool's figure 12.

    On a CPU the foreground is a process on the first core; the background is another one, on the same core at each
    priority, or on a second core. On a GPU, also an emulated one, both are streams of one process. Nothing else may run
    meanwhile, unless the device's time is virtual.

    On a CPU it also measures the work of a background at the lowest priority while a foreground waits, with two
    trainings; and inside transfers, with two ranks, where there are two cores.

    Args:
        device: see :func:`deeppool.device.find.find_device`.
        matrices: rows of the square matrices of the products; beside them there are sums of vectors.
        durations: seconds that a kernel takes alone.
        arrangements: ``normal``, ``nice``, ``lowest`` and ``other core`` on a CPU, ``normal`` and ``lowest`` on a GPU;
            all of them unless given.
        waits: seconds for which a foreground waits, measured on a CPU where ``lowest`` is among the arrangements.
        seconds: duration of each pair in each round; of each wait, and of transfers, twenty times as long.
        rounds: number of rounds, whose median counts.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: kernels, arrangements, waits, seconds or rounds that there cannot be.
        RunError: a process died.
        DeviceUnavailableError: CUDA was asked for and is not there.
    """
    seconds, rounds = positive_number("seconds", seconds), whole_number("rounds", rounds)
    found = find_device(device)
    report = on_progress or (lambda what, share: None)
    chosen, lengths = kernel_specs(kernel_sizes(found), matrices, durations), check_waits(waits)
    report("starting", 0.0)
    with (
        found.times_only(),
        StreamBench(found, chosen, arrangements) if found.asynchronous else CpuBench(chosen, arrangements) as bench,
    ):
        names = list(bench.arrangements)
        with_waits = not found.asynchronous and "lowest" in names and bool(lengths)
        with_transfers = with_waits and found.count >= RANKS
        reports = _progress_of_parts(
            report,
            {
                "pairs of kernels": (len(names) + 0.5) * len(chosen) ** 2,
                "waits": with_waits * 1.5 * PAIRS_IN_A_WAIT * len(lengths),
                "transfers": with_transfers * 1.5 * PAIRS_IN_A_WAIT,
            },
        )
        rates, alone = measure_rates(bench, len(chosen), seconds, rounds, reports["pairs of kernels"])
    measured = None
    if with_waits:
        measured = IdleHarvest(lengths, measure_waits(lengths, PAIRS_IN_A_WAIT * seconds, rounds, reports["waits"]))
    if measured is not None and with_transfers:
        within = measure_transfers(PAIRS_IN_A_WAIT * seconds, rounds, reports["transfers"])
        measured = replace(measured, in_transfers=within)
    report("done", 1.0)
    return Interference(
        device_name=found.name,
        date=datetime.date.today().isoformat(),
        method=f"{rounds} round{'s' * (rounds > 1)} of {seconds:g} s a pair, medians, torch {torch.__version__}"
        f"{_other_times(chosen, alone.tolist())}",
        intensities=tuple(dict.fromkeys(kind.intensity for kind in chosen)),
        durations=tuple(dict.fromkeys(kind.seconds for kind in chosen)),
        arrangements=tuple(
            Arrangement(name, *(tuple(map(tuple, pairs.tolist())) for pairs in both))
            for name, both in zip(names, rates, strict=True)
        ),
        basis="emulated" if find_kind(found.kind).emulated else "measured",
        waits=measured,
    )


def _other_times(kinds: Sequence[KernelSpec], seconds: Sequence[float]) -> str:
    """Returns which kernels take another time than their class, as buffers are finite and a matrix may take longer."""
    told = [
        f"{'sums' if kind.rows is None else f'products of {kind.rows} rows'} of {format_seconds(kind.seconds)} took "
        f"{format_seconds(found)}"
        for kind, found in zip(kinds, seconds, strict=True)
        if abs(found / kind.seconds - 1) > OTHER_TIME
    ]
    return f"; alone {', '.join(told)}" if told else ""


def _progress_of_parts(report: Progress, parts: Mapping[str, float]) -> dict[str, Callable[[float], None]]:
    """Returns, per part of the measurement with its expected seconds, a callback for the share of it that is done."""
    reports: dict[str, Callable[[float], None]] = {}
    since, whole = 0.0, sum(parts.values())
    for what, length in parts.items():
        reports[what] = partial(_report_part, report, what, since / whole, length / whole)
        since += length
    return reports


def _report_part(report: Progress, what: str, since: float, length: float, share: float) -> None:
    report(what, since + length * share)
