"""Profile: what every layer costs at several per-GPU batch sizes, and where the times come from."""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError, MissingProfileError
from deeppool.graph.layer import LayerGraph
from deeppool.profiling.iteration_check import (
    IterationCheck,
    deviation_warning,
    extrapolation_accuracy,
    extrapolation_warning,
)
from deeppool.units import format_seconds


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one layer at one per-GPU batch size."""

    forward: float
    backward: float
    spread: float = 0.0
    """Half the interquartile range of forward + backward over the repetitions, as a fraction of their median."""
    extrapolated: bool = False
    """The batch lies above the largest measured one: the last two sizes were continued in a straight line."""

    @property
    def total(self) -> float:
        """Forward plus backward."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class Measurement:
    """One distinct layer signature at the profile's batch sizes, in their order."""

    signature: str
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    spread: tuple[float, ...]
    peak_bytes: tuple[int, ...] = ()
    """Most that the layer's forward or backward held beyond what was there when it began; empty: not measured."""


@dataclass(frozen=True)
class Profile:
    """Layer times of one model on one device: what a plan is made of."""

    KIND: ClassVar[str] = "profile"

    graph: LayerGraph
    batch_sizes: tuple[int, ...]
    """Per-GPU batch sizes, ascending."""
    measurements: tuple[Measurement, ...]
    """One per distinct signature of the graph."""
    device: str
    """``cpu`` or ``cuda``."""
    device_name: str
    precision: Precision
    threads: int
    """CPU threads that one GPU's worth of work used."""
    provenance: Literal["measured", "estimated"]
    method: str
    date: str
    versions: dict[str, str]
    ranks: int = 1
    """CPU cores that trained at the same time, of which one was measured."""
    graphs: bool = False
    """Measured under CUDA graphs, where launching kernels costs nothing."""
    checks: tuple[IterationCheck, ...] = ()
    """Per batch size the sum of the layers against the whole iteration; empty where nothing was compared."""
    extrapolation_error: float | None = field(init=False, default=None, compare=False)
    """How wrong the straight line above the largest size is, tried on the largest size itself: predicted from the
    two below, the absolute errors of the layers as a share of their sum. None: fewer than three sizes."""
    origin: Any = field(default=None, compare=False, repr=False)
    """The CapturedModel it was measured on, in the process that did; never saved."""

    def __post_init__(self) -> None:
        if not self.batch_sizes or list(self.batch_sizes) != sorted(set(self.batch_sizes)) or self.batch_sizes[0] < 1:
            raise InvalidValueError(
                f"batch_sizes must be ascending positive numbers, got {list(self.batch_sizes)} (for example 1,2,4,8)"
            )
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
        object.__setattr__(self, "extrapolation_error", self._try_extrapolation())

    @property
    def fingerprint(self) -> str:
        """Equal for profiles that hold the same times."""
        return hashlib.sha256(repr(self.measurements).encode()).hexdigest()[:16]

    def time(self, layer: int, batch: int) -> LayerTime:
        """Time of a layer at a per-GPU batch size: measured, interpolated between two sizes, or continued above.

        Raises:
            MissingProfileError: below the smallest measured size, where a straight line would be a guess.
        """
        sizes = self.batch_sizes
        if batch < sizes[0]:
            raise MissingProfileError(
                f"no time for layer '{self.graph.layers[layer].name}' at per-GPU batch {batch}: the profile of "
                f"{self.graph.model} has {', '.join(map(str, sizes))} (profile with --batch-sizes {batch},…, "
                "or use fewer GPUs)"
            )
        measurement: Measurement = self._by_signature[self.graph.layers[layer].signature]  # type: ignore[attr-defined]
        upper = min(max(bisect_left(sizes, batch), 1), len(sizes) - 1)
        return LayerTime(
            _along(sizes, measurement.forward, batch),
            _along(sizes, measurement.backward, batch),
            max(measurement.spread[max(upper - 1, 0) : upper + 1]),
            batch > sizes[-1],
        )

    def spread(self, layer: int, batch: int) -> float | None:
        """Of a layer's runs at a measured batch size, as in :class:`LayerTime`; None at any other size."""
        if batch not in self.batch_sizes:
            return None
        measurement: Measurement = self._by_signature[self.graph.layers[layer].signature]  # type: ignore[attr-defined]
        return measurement.spread[self.batch_sizes.index(batch)]

    def _try_extrapolation(self) -> float | None:
        sizes = self.batch_sizes
        if len(sizes) < 3:
            return None
        error = whole = 0.0
        places = Counter(layer.signature for layer in self.graph.layers)
        for measurement in self.measurements:
            for times in (measurement.forward, measurement.backward):
                predicted = _along(sizes[:-1], times[:-1], sizes[-1])
                error += places[measurement.signature] * abs(predicted - times[-1])
                whole += places[measurement.signature] * times[-1]
        return error / whole

    def caveats(self, extrapolated: Iterable[str] = ()) -> tuple[str, ...]:
        """What whoever uses the profile should know, a sentence each; nothing where all is within its bounds.

        Args:
            extrapolated: names of layers whose times were asked for above the largest measured size.
        """
        found = [deviation_warning(self.checks, self.graphs)]
        names = list(extrapolated)
        if names:
            found.append(extrapolation_warning(names, self.batch_sizes, self.extrapolation_error))
        return tuple(sentence for sentence in found if sentence is not None)

    def explain(self) -> str:
        """The profile in a line, and below it the sum of its layers against the whole iteration, and its caveats."""
        lines = [str(self), *(f"  {check}" for check in self.checks)]
        lines.append(
            f"  beyond batch {self.batch_sizes[-1]}: {extrapolation_accuracy(self.batch_sizes, self.extrapolation_error)}"
        )
        return "\n".join([*lines, *(f"  caution: {sentence}" for sentence in self.caveats())])

    def iteration_time(self, batch: int) -> float:
        """Seconds of forward and backward of all layers on one GPU."""
        return sum(self.time(index, batch).total for index in range(len(self.graph.layers)))

    def __str__(self) -> str:
        smallest, largest = self.batch_sizes[0], self.batch_sizes[-1]
        return (
            f"{self.graph}; {self.provenance} on {self.device_name} ({self.device}, {self.precision}, "
            f"{'CUDA graphs, ' * self.graphs}{self.threads} thread{'s' * (self.threads > 1)}"
            f"{f', one of {self.ranks} ranks' * (self.ranks > 1)}): "
            f"{format_seconds(self.iteration_time(smallest))} at batch {smallest}, "
            f"{format_seconds(self.iteration_time(largest))} at batch {largest}"
        )


def _along(sizes: tuple[int, ...], times: tuple[float, ...], batch: int) -> float:
    """The time at a batch size on straight lines through the measured ones, the last of them continued.

    Continued, the time never falls below that of the largest size, where noise would have a larger batch be faster.
    """
    if len(sizes) == 1:
        return times[0] * batch / sizes[0]
    upper = min(max(bisect_left(sizes, batch), 1), len(sizes) - 1)
    lower = upper - 1
    share = (batch - sizes[lower]) / (sizes[upper] - sizes[lower])
    return max(times[lower] + share * (times[upper] - times[lower]), times[upper] if share > 1 else 0.0)
