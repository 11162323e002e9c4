"""Rows of a layer table from a profile."""

from deeppool.figures.graph import join_operators, output_bytes
from deeppool.profiling.table import Profile
from deeppool.units import format_bytes, format_seconds
from deeppool.widgets.sortable_table import Cell, ColumnHead

HEADS = (
    ColumnHead("#", hint="in order of execution"),
    ColumnHead("layer", numeric=False),
    ColumnHead("operators", numeric=False, least_width=1000),
    ColumnHead("forward", least_width=500),
    ColumnHead("backward", least_width=500),
    ColumnHead("sum"),
    ColumnHead("share (%)", hint="of the iteration on one GPU", least_width=340),
    ColumnHead("spread (%)", hint="half the interquartile range of the runs, of their median", least_width=660),
    ColumnHead("parameters", least_width=580),
    ColumnHead("output", hint="bytes per sample of the layer's output", least_width=740),
    ColumnHead("saved", hint="bytes per sample of activations saved for the backward pass", least_width=810),
)
SUM = 5
"""Index of the column by which the table is sorted at first: the most expensive layers come first."""
NAMES = 3
"""Operators of a layer that are listed by name."""


def layer_rows(profile: Profile, batch: int) -> list[list[Cell]]:
    """Returns one row per layer, under :data:`HEADS`.

    Args:
        profile: profile whose layers and times are shown.
        batch: per-GPU batch of the times.

    Raises:
        MissingProfileError: below the profile's smallest batch.
    """
    graph, whole = profile.graph, profile.iteration_time(batch)
    rows: list[list[Cell]] = []
    for index, (layer, output) in enumerate(zip(graph.layers, output_bytes(graph), strict=True)):
        time = profile.time(index, batch)
        rows.append(
            [
                (str(index), index),
                (layer.name, layer.name),
                (join_operators(layer.operators, NAMES), layer.operators[0]),
                _seconds(time.forward),
                _seconds(time.backward),
                _seconds(time.total),
                _percent(time.total / whole),
                _percent(profile.spread(index, batch) if profile.provenance == "measured" else None),
                _bytes(layer.parameter_bytes),
                _bytes(output),
                _bytes(layer.activation_bytes),
            ]
        )
    return rows


def _seconds(seconds: float) -> Cell:
    return format_seconds(seconds), seconds


def _percent(share: float | None) -> Cell:
    return ("–", -1.0) if share is None else (f"{100 * share:.1f}", share)


def _bytes(size: int | None) -> Cell:
    """Returns the sort key and text of a size; unknown sizes sort below all others."""
    return ("–", -1.0) if size is None else (format_bytes(size), float(size))
