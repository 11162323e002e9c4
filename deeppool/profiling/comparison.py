"""Comparison of two profiles of one model: layers whose times differ by more than noise."""

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

from deeppool.base.arguments import typed
from deeppool.device.kinds import graphs_name
from deeppool.errors import InvalidValueError
from deeppool.profiling.table import Profile
from deeppool.units import format_growth, format_rate, format_seconds, format_tables


@dataclass(frozen=True, slots=True)
class LayerTimeChange:
    """Changed time of the layers of one signature at one batch size."""

    layers: tuple[str, ...]
    """Names of the layers."""
    batch: int
    before: float
    """Forward plus backward seconds of each layer."""
    after: float
    noise: float
    """Sum of both measurements' spreads, relative to ``before``."""

    def __post_init__(self) -> None:
        if not self.layers or self.before <= 0:
            raise InvalidValueError(
                f"a change is of some layers that took some time, got {len(self.layers)} layers of {self.before:g} s"
            )

    @property
    def change(self) -> float:
        """Difference relative to ``before``."""
        return self.after / self.before - 1

    @property
    def weight(self) -> float:
        """Seconds by which these layers together change the iteration."""
        return (self.after - self.before) * len(self.layers)


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Layer times that differ between two profiles of a model."""

    KIND: ClassVar[str] = "profile-comparison"

    model: str
    before: str
    """Device, precision and date of the first profile."""
    after: str
    batch_sizes: tuple[int, ...]
    """Batch sizes measured in both profiles; interpolated ones are not compared."""
    iteration_before: tuple[float, ...]
    """Sum of the layers per batch size, in seconds."""
    iteration_after: tuple[float, ...]
    changes: tuple[LayerTimeChange, ...]
    """Changes beyond noise, ordered by their effect on the iteration."""
    compared: int
    """Number of compared times: distinct layers times batch sizes."""

    def __post_init__(self) -> None:
        counts = len(self.batch_sizes), len(self.iteration_before), len(self.iteration_after)
        if len(set(counts)) > 1 or min(self.iteration_before, default=1.0) <= 0:
            raise InvalidValueError(
                "batch_sizes, iteration_before and iteration_after must be as many, and iterations take some time, got "
                f"{', '.join(map(str, counts))} of them, from {min(self.iteration_before, default=1.0):g} s"
            )

    def explain(self, rows: int = 20) -> str:
        """Formats a line per batch size, then a table of the largest changes."""
        from rich import box
        from rich.table import Table

        lines = [str(self)]
        for batch, old, new in zip(self.batch_sizes, self.iteration_before, self.iteration_after, strict=True):
            lines.append(
                f"  batch {batch}: {format_seconds(old)} → {format_seconds(new)} ({format_growth(new / old - 1)})"
            )
        if not self.changes:
            return "\n".join(lines)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("layer", "batch", "before", "after", "change", "noise", "in the iteration"):
            table.add_column(heading, justify="left" if heading == "layer" else "right", no_wrap=True)
        for change in self.changes[:rows]:
            others = f" and {len(change.layers) - 1} like it" if len(change.layers) > 1 else ""
            table.add_row(
                change.layers[0] + others,
                str(change.batch),
                format_seconds(change.before),
                format_seconds(change.after),
                format_growth(change.change),
                f"±{100 * change.noise:.1f} %" if change.noise <= 1 else f"±{format_rate(change.noise)} times",
                f"{'+' * (change.weight > 0)}{format_seconds(change.weight)}",
            )
        lines.append(format_tables(table, width=140))
        if len(self.changes) > rows:
            lines.append(f"… and {len(self.changes) - rows} more (--json has all)")
        return "\n".join(lines)

    def __str__(self) -> str:
        return (
            f"{self.model}: {len(self.changes)} of {self.compared} layer times changed beyond noise, "
            f"from {self.before} to {self.after}"
        )


@typed
def compare_profiles(before: Profile, after: Profile) -> ProfileComparison:
    """Compares the layers of one model in two profiles, at the batch sizes that both measured.

    A layer has changed when the difference exceeds the sum of both measurements' spreads. Devices,
    precisions and versions may differ.

    Raises:
        InvalidValueError: the profiles are of different models, or share no batch size.
    """
    if before.graph.fingerprint != after.graph.fingerprint:
        raise InvalidValueError(
            f"the profiles are of different models: {_graph(before)} and {_graph(after)} "
            "(compare profiles of the same model and input shape)"
        )
    shared = tuple(sorted({*before.batch_sizes} & {*after.batch_sizes}))
    if not shared:
        raise InvalidValueError(
            f"the profiles share no batch size: {list(before.batch_sizes)} and {list(after.batch_sizes)} "
            "(profile again with common --batch-sizes)"
        )
    indices: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(before.graph.layers):
        indices[layer.signature].append(index)
    changes = []
    for layers in indices.values():
        for batch in shared:
            old, new = before.time(layers[0], batch), after.time(layers[0], batch)
            # A spread is relative to its own time.
            noise = old.spread + new.spread * new.total / old.total
            if abs(new.total - old.total) > noise * old.total:
                names = tuple(before.graph.layers[index].name for index in layers)
                changes.append(LayerTimeChange(names, batch, old.total, new.total, noise))
    return ProfileComparison(
        model=before.graph.model,
        before=_origin(before),
        after=_origin(after),
        batch_sizes=shared,
        iteration_before=tuple(before.iteration_time(batch) for batch in shared),
        iteration_after=tuple(after.iteration_time(batch) for batch in shared),
        changes=tuple(sorted(changes, key=lambda change: -abs(change.weight))),
        compared=len(indices) * len(shared),
    )


def _graph(profile: Profile) -> str:
    shape = "x".join(map(str, profile.graph.input_shape))
    return f"{profile.graph.model} on {shape} ({len(profile.graph.layers)} layers, {profile.graph.fingerprint})"


def _origin(profile: Profile) -> str:
    mode = f"{graphs_name(profile.device)}, " * profile.graphs
    return f"{profile.device_name} ({profile.precision}, {mode}{profile.date})"
