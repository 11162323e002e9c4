"""Two profiles of one model: which layers changed, by how much, and whether that is more than noise."""

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

from deeppool.errors import InvalidValueError
from deeppool.profiling.table import Profile
from deeppool.units import format_percent, format_seconds, format_tables


@dataclass(frozen=True, slots=True)
class LayerTimeChange:
    """Equal layers at one batch size."""

    layers: tuple[str, ...]
    """Of one signature."""
    batch: int
    before: float
    """Seconds of forward and backward of each."""
    after: float
    noise: float
    """The spreads of both measurements, added: a share of ``before``."""

    @property
    def change(self) -> float:
        """As a share of ``before``."""
        return self.after / self.before - 1

    @property
    def weight(self) -> float:
        """Seconds by which all of them together change the iteration."""
        return (self.after - self.before) * len(self.layers)


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """What changed from one profile to another."""

    KIND: ClassVar[str] = "profile-comparison"

    model: str
    before: str
    """Where and how it was measured."""
    after: str
    batch_sizes: tuple[int, ...]
    """That both have measured; what lies between is not compared."""
    iteration_before: tuple[float, ...]
    """Sum of the layers per batch size, in seconds."""
    iteration_after: tuple[float, ...]
    changes: tuple[LayerTimeChange, ...]
    """Beyond noise; those that weigh most in the iteration first."""
    compared: int
    """Distinct layers times batch sizes."""

    def explain(self, rows: int = 20) -> str:
        """The iterations in a line each, then the layers that changed most."""
        from rich import box
        from rich.table import Table

        lines = [str(self)]
        for batch, old, new in zip(self.batch_sizes, self.iteration_before, self.iteration_after, strict=True):
            lines.append(
                f"  batch {batch}: {format_seconds(old)} → {format_seconds(new)} ({format_percent(new / old - 1)})"
            )
        if not self.changes:
            return "\n".join(lines)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("layer", "batch", "before", "after", "change", "noise", "in the iteration"):
            table.add_column(heading, justify="left" if heading == "layer" else "right", no_wrap=True)
        for change in self.changes[:rows]:
            alike = f" and {len(change.layers) - 1} like it" if len(change.layers) > 1 else ""
            table.add_row(
                change.layers[0] + alike,
                str(change.batch),
                format_seconds(change.before),
                format_seconds(change.after),
                format_percent(change.change),
                f"±{100 * change.noise:.1f} %",
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


def compare_profiles(before: Profile, after: Profile) -> ProfileComparison:
    """Compares the layers of one model in two profiles, at the batch sizes that both measured.

    A layer changed when the difference is more than the spreads of both measurements together. Devices,
    precisions and versions may differ: that is often the question.

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
    places: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(before.graph.layers):
        places[layer.signature].append(index)
    changes = []
    for layers in places.values():
        for batch in shared:
            old, new = before.time(layers[0], batch), after.time(layers[0], batch)
            # A spread is a share of its own time.
            noise = old.spread + new.spread * new.total / old.total
            if abs(new.total - old.total) > noise * old.total:
                names = tuple(before.graph.layers[index].name for index in layers)
                changes.append(LayerTimeChange(names, batch, old.total, new.total, noise))
    return ProfileComparison(
        model=before.graph.model,
        before=_place(before),
        after=_place(after),
        batch_sizes=shared,
        iteration_before=tuple(before.iteration_time(batch) for batch in shared),
        iteration_after=tuple(after.iteration_time(batch) for batch in shared),
        changes=tuple(sorted(changes, key=lambda change: -abs(change.weight))),
        compared=len(places) * len(shared),
    )


def _graph(profile: Profile) -> str:
    shape = "x".join(map(str, profile.graph.input_shape))
    return f"{profile.graph.model} on {shape} ({len(profile.graph.layers)} layers, {profile.graph.fingerprint})"


def _place(profile: Profile) -> str:
    mode = "CUDA graphs, " * profile.graphs
    return f"{profile.device_name} ({profile.precision}, {mode}{profile.date})"
