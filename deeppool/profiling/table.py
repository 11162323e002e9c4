"""Profile: times of every layer at several per-GPU batch sizes, with their provenance."""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from deeppool.base.number_checks import whole_number
from deeppool.device.kinds import find_kind, graphs_name
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError, MissingProfileError
from deeppool.graph.layer import LayerGraph
from deeppool.profiling.iteration_check import (
    IterationCheck,
    deviation_warning,
    extrapolation_accuracy,
    extrapolation_warning,
)
from deeppool.profiling.update_estimate import estimated_update_per_byte
from deeppool.units import format_bytes, format_count, format_seconds

MAXIMUM_SAMPLES = 10**9
"""Largest batch of one GPU."""
BatchSizes = Sequence[Annotated[int, "the message of distinct_sizes gives an example"]]
"""Per-GPU batch sizes of a profile."""


def distinct_sizes(batch_sizes: Iterable[int]) -> tuple[int, ...]:
    """Returns batch sizes that a user gives as ascending integers of Python.

    Raises:
        InvalidValueError: there is none, or one is no positive integer.
    """
    given = list(batch_sizes)
    try:
        sizes = tuple(sorted({whole_number("batch_sizes", size, most=MAXIMUM_SAMPLES) for size in given}))
    except InvalidValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise InvalidValueError(f"batch_sizes must be positive numbers, got {given} (whole ones, for example 1,2,4,8)")
    return sizes


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Forward and backward seconds of one layer at one per-GPU batch size."""

    forward: float
    backward: float
    spread: float = 0.0
    """Half the interquartile range of forward + backward over the repetitions, as a fraction of their median; where the
    time comes from two batch sizes, the larger one of theirs."""
    extrapolated: bool = False
    """Whether the batch exceeds the largest measured one, so that the time is a linear extrapolation."""

    @property
    def total(self) -> float:
        """Forward plus backward."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one distinct layer signature, per batch size of the profile."""

    signature: str
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    spread: tuple[float, ...]
    peak_bytes: tuple[int, ...] = ()
    """Peak bytes that the layer's forward or backward allocated; empty: not measured."""


@dataclass(frozen=True)
class Profile:
    """Layer times of one model on one device, from which plans are made."""

    KIND: ClassVar[str] = "profile"

    graph: LayerGraph
    batch_sizes: tuple[int, ...]
    """Per-GPU batch sizes, ascending."""
    measurements: tuple[Measurement, ...]
    """Measurements of the distinct signatures of the graph."""
    device: str
    """Kind of device, of :data:`deeppool.device.kinds.KINDS`."""
    device_name: str
    precision: Precision
    threads: int
    """CPU threads per rank."""
    provenance: Literal["measured", "estimated"]
    method: str
    date: str
    versions: dict[str, str]
    ranks: int = 1
    """CPU cores that trained at the same time, of which one was measured."""
    graphs: bool = False
    """Whether it was measured under CUDA graphs, without kernel launch costs."""
    update_per_byte: float | None = None
    """Seconds of the optimizer's update, SGD with momentum, per byte of parameters; None: unknown, see
    :attr:`update_seconds_per_byte`."""
    checks: tuple[IterationCheck, ...] = ()
    """Sum of the layers against the whole iteration, per batch size; empty where not measured."""
    error: float | None = None
    """Median error of estimated iteration times, where it was checked; None: measured, or unknown."""
    extrapolation_error: float | None = field(init=False, default=None, compare=False)
    """Error of the linear extrapolation, checked on the largest size: predicted from the two sizes below, the absolute
    errors of the layers relative to their sum. None: fewer than three sizes."""
    origin: Any = field(default=None, compare=False, repr=False)
    """The CapturedModel that was measured, in the measuring process only; never saved."""

    def __post_init__(self) -> None:
        if not self.batch_sizes or list(self.batch_sizes) != sorted(set(self.batch_sizes)) or self.batch_sizes[0] < 1:
            raise InvalidValueError(
                f"batch_sizes must be ascending positive numbers, got {list(self.batch_sizes)} (for example 1,2,4,8)"
            )
        find_kind(self.device)
        if self.update_per_byte is not None and self.update_per_byte < 0:
            raise InvalidValueError(f"update_per_byte must not be negative, got {self.update_per_byte:g} seconds")
        known = {measurement.signature for measurement in self.measurements}
        for layer in self.graph.layers:
            if layer.signature not in known:
                raise InvalidValueError(
                    f"measurements hold no times for layer '{layer.name}' (profile the model again)"
                )
        for measurement in self.measurements:
            for times in (measurement.forward, measurement.backward, measurement.spread):
                if len(times) != len(self.batch_sizes) or min(times) < 0:
                    raise InvalidValueError(
                        f"measurement {measurement.signature} needs {len(self.batch_sizes)} times >= 0, "
                        f"got {list(times)}"
                    )
            if any(f + b <= 0 for f, b in zip(measurement.forward, measurement.backward, strict=True)):
                # Amplification is relative to a layer's time on one GPU.
                raise InvalidValueError(
                    f"measurement {measurement.signature} has forward {list(measurement.forward)} and backward "
                    f"{list(measurement.backward)}: no layer takes no time at all (an estimate needs a launch cost)"
                )
        object.__setattr__(self, "_by_signature", {m.signature: m for m in self.measurements})
        object.__setattr__(self, "extrapolation_error", self._extrapolation_error())

    @property
    def fingerprint(self) -> str:
        """Hash of the times."""
        return hashlib.sha256(repr(self.measurements).encode()).hexdigest()[:16]

    def time(self, layer: int, batch: int) -> LayerTime:
        """Returns the time of a layer at a per-GPU batch size: measured, interpolated or extrapolated.

        Raises:
            MissingProfileError: the batch is below the smallest measured size, where extrapolation is unreliable.
        """
        sizes = self.batch_sizes
        if batch < sizes[0]:
            raise MissingProfileError(
                f"no time for layer '{self.graph.layers[layer].name}' at per-GPU batch {batch}: the profile of "
                f"{self.graph.model} has {', '.join(map(str, sizes))} (profile with --batch-sizes {batch},…, "
                "or use fewer GPUs)"
            )
        measurement: Measurement = self._by_signature[self.graph.layers[layer].signature]  # type: ignore[attr-defined]
        spread = self.spread(layer, batch)
        if spread is None:
            upper = min(bisect_left(sizes, batch), len(sizes) - 1)
            spread = max(measurement.spread[max(upper - 1, 0) : upper + 1])
        return LayerTime(
            _interpolate(sizes, measurement.forward, batch),
            _interpolate(sizes, measurement.backward, batch),
            spread,
            batch > sizes[-1],
        )

    @property
    def update_seconds_per_byte(self) -> float:
        """Seconds of the optimizer's update per byte of parameters: as known, else estimated from bandwidth."""
        if self.update_per_byte is not None:
            return self.update_per_byte
        return estimated_update_per_byte(self.device, self.device_name)

    def spread(self, layer: int, batch: int) -> float | None:
        """Returns the spread of a layer's runs at a measured batch size, as in :class:`LayerTime`; else None."""
        if batch not in self.batch_sizes:
            return None
        measurement: Measurement = self._by_signature[self.graph.layers[layer].signature]  # type: ignore[attr-defined]
        return measurement.spread[self.batch_sizes.index(batch)]

    def _extrapolation_error(self) -> float | None:
        sizes = self.batch_sizes
        if len(sizes) < 3:
            return None
        error = whole = 0.0
        counts = Counter(layer.signature for layer in self.graph.layers)
        for measurement in self.measurements:
            for times in (measurement.forward, measurement.backward):
                predicted = _interpolate(sizes[:-1], times[:-1], sizes[-1])
                error += counts[measurement.signature] * abs(predicted - times[-1])
                whole += counts[measurement.signature] * times[-1]
        return error / whole

    def caveats(self, extrapolated: Iterable[str] = ()) -> tuple[str, ...]:
        """Returns warnings about the profile's accuracy and the part of the model that it covers, a sentence each.

        Args:
            extrapolated: names of layers whose times were extrapolated above the largest measured size.
        """
        found = [deviation_warning(self.checks, self.graphs), self._unread_warning()]
        names = list(extrapolated)
        if names:
            found.append(extrapolation_warning(names, self.batch_sizes, self.extrapolation_error))
        return tuple(sentence for sentence in found if sentence is not None)

    def _unread_warning(self) -> str | None:
        whole = self.graph.parameter_bytes
        unread = whole - sum(self.graph.gradient_bytes)
        if unread <= 0:
            return None
        return (
            f"no gradient reaches {format_bytes(unread)} of the {format_bytes(whole)} of parameters: "
            "layers that the loss does not need are not timed (is every output in the loss? dp.capture takes loss=)"
        )

    def explain(self) -> str:
        """Formats the profile, its accuracy checks and its warnings, one per line."""
        lines = [str(self), *(f"  {check}" for check in self.checks)]
        accuracy = extrapolation_accuracy(self.batch_sizes, self.extrapolation_error)
        lines.append(f"  beyond batch {self.batch_sizes[-1]}: {accuracy}")
        update = self.update_seconds_per_byte * self.graph.parameter_bytes
        source = "estimated" if self.update_per_byte is None else self.provenance
        lines.append(f"  update of all parameters: {format_seconds(update)}, {source}")
        return "\n".join([*lines, *(f"  caution: {sentence}" for sentence in self.caveats())])

    def iteration_time(self, batch: int) -> float:
        """Returns the forward plus backward seconds of all layers on one GPU."""
        return sum(self.time(index, batch).total for index in range(len(self.graph.layers)))

    def step_time(self, batch: int) -> float:
        """Returns the seconds of a training step on one GPU: an iteration, and the optimizer's update."""
        return self.iteration_time(batch) + sum(self.update_times())

    def update_times(self) -> list[float]:
        """Returns the seconds of the optimizer's update of each layer's parameters, tied ones with the first layer."""
        return [size * self.update_seconds_per_byte for size in self.graph.gradient_bytes]

    def __str__(self) -> str:
        ends = dict.fromkeys((self.batch_sizes[0], self.batch_sizes[-1]))
        times = ", ".join(f"{format_seconds(self.iteration_time(batch))} at batch {batch}" for batch in ends)
        known = "" if self.error is None else f", median error {100 * self.error:.0f} %,"
        settings = [self.device, self.precision]
        if self.graphs:
            settings.append(graphs_name(self.device))
        if self.device != "cuda":
            settings.append(format_count(self.threads, "thread"))
        if self.ranks > 1:
            settings.append(f"one of {self.ranks} ranks")
        return f"{self.graph}; {self.provenance}{known} on {self.device_name} ({', '.join(settings)}): {times}"


def _interpolate(sizes: tuple[int, ...], times: tuple[float, ...], batch: int) -> float:
    """Interpolates linearly between measured batch sizes, and extrapolates the last segment.

    An extrapolated time is at least that of the largest size, whatever the noise. At a measured size it is the measured
    time, to the last bit: without a spread, two profiles are compared for equality.
    """
    upper = bisect_left(sizes, batch)
    if upper < len(sizes) and sizes[upper] == batch:
        return times[upper]
    if len(sizes) == 1:
        return times[0] * batch / sizes[0]
    upper = min(max(upper, 1), len(sizes) - 1)
    lower = upper - 1
    share = (batch - sizes[lower]) / (sizes[upper] - sizes[lower])
    return max(times[lower] + share * (times[upper] - times[lower]), times[upper] if share > 1 else 0.0)
