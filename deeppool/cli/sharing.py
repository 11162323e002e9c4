"""Usage and output of ``deeppool frontier --background``: collocation compared with static partitions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from deeppool.cli.options import refuse
from deeppool.cli.output import show

if TYPE_CHECKING:
    from deeppool.planning.studies.tradeoff_record import OperatingPoint, SharedCluster, SharingAnswer

WIDTH = 180
"""Columns of the widest table, of a thousand GPUs."""


def check_usage(background: str | None, *, min_background: float | None, **others: float | None) -> None:
    """Rejects options that need ``--background`` without it, and two selection criteria at once."""
    if background is None:
        refuse("needs --background PROFILE", min_background=min_background, **others)
    if min_background is not None and others.get("min_speedup") is not None:
        raise typer.BadParameter("give --min-background or --min-speedup, not both")


def show_sharing(
    shared: "SharedCluster", min_background: float | None, min_speedup: float | None, as_json: bool
) -> None:
    """Prints the selected plan if there is a criterion, else a table with a row per static partition."""
    if min_background is not None:
        _show_answer(shared.fastest(min_background), as_json)
    elif min_speedup is not None:
        _show_answer(shared.highest_throughput(min_speedup), as_json)
    else:
        show(shared, as_json, lambda: partition_table(shared))


def _show_answer(answer: "SharingAnswer", as_json: bool) -> None:
    show(answer, as_json, lambda: f"{answer}\n{as_plan(answer)}")


def as_plan(answer: "SharingAnswer") -> str:
    """The command that makes the plan. The digits keep the limit within the search's tolerance."""
    point = answer.point
    return (
        f"as a plan: deeppool plan … --gpus {point.gpus} --limit-scope iteration "
        f"--amplification-limit {point.amplification_limit:.10g}"
    )


def partition_table(shared: "SharedCluster") -> str:
    """The record's summary, then each static partition with the collocated plans that match it."""
    from deeppool.planning.report.tables import render, table

    headings = ("speed-up", "samples/s", "with burst parallel", "collocated, as many samples/s", "collocated, as fast")
    rows = table("static partition", *headings)
    rows.columns[0].justify = "right"
    for row in _rows(shared):
        rows.add_row(*row)
    notes = [
        "Static partition: GPUs of a data-parallel foreground + GPUs of the background; with burst parallel: the same "
        "partition with the fastest",
        "burst-parallel foreground. samples/s: foreground and background. Collocated: a burst-parallel foreground with "
        "the background in its idle time,",
        "on the given number of GPUs with the given iteration limit; the other GPUs train the background alone. "
        "No plan: none trains as much, or is as fast.",
    ]
    return "\n".join([str(shared), "", render(rows, width=WIDTH), "", *notes])


def _rows(shared: "SharedCluster") -> Iterator[tuple[str, ...]]:
    from deeppool.units import format_rate

    burst_parallel = {point.gpus: point for point in shared.burst_parallel_partitions}
    for match in shared.comparisons():
        still = match.partition
        # Data parallelism accumulates gradients where no plan fits.
        burst = burst_parallel.get(still.gpus)
        yield (
            f"{still.gpus} + {shared.gpus - still.gpus} GPUs",
            f"{still.speedup:.2f}x",
            format_rate(still.throughput, 4),
            "does not fit" if burst is None else f"{burst.speedup:.2f}x, {format_rate(burst.throughput, 4)}",
            _gain(match.fastest, "speedup", still),
            _gain(match.highest_throughput, "throughput", still),
        )


def _gain(point: "OperatingPoint | None", what: str, still: "OperatingPoint") -> str:
    """A collocated plan's value, its gain over the partition, its GPUs and its iteration limit."""
    if point is None:
        return "no plan"
    from deeppool.costs.amplification import format_limit
    from deeppool.units import format_growth, format_rate

    value = f"{point.speedup:.2f}x" if what == "speedup" else format_rate(point.throughput, 4)
    # Rounded first, and 0 added: a loss that shows as 0 has no sign.
    more = format_growth(round(getattr(point, what) / getattr(still, what) - 1, 3) + 0.0)
    limit = format_limit(point.amplification_limit)
    return f"{value} ({more}; {point.gpus} GPU{'s' * (point.gpus > 1)}, limit {limit})"
