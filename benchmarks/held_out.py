"""What a profile says of batch sizes that it did not measure, tried on sizes that were."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeppool.profiling.table import Profile


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One batch size that was measured and then forgotten."""

    batch: int
    errors: tuple[float, ...]
    """Of each distinct layer's forward and backward together, as a share of what was measured."""
    iteration: float
    """Of the sum of all layers; positive where it is predicted too long."""

    @property
    def median(self) -> float:
        return statistics.median(self.errors)


def held_out(profile: Profile, sizes: Sequence[int]) -> list[HeldOut]:
    """Predicts each of the sizes from all others of the profile, as the planner would."""
    few = without(profile, sizes)
    layers = {layer.signature: index for index, layer in enumerate(profile.graph.layers)}.values()
    return [
        HeldOut(
            batch,
            tuple(abs(few.time(index, batch).total / profile.time(index, batch).total - 1) for index in layers),
            few.iteration_time(batch) / profile.iteration_time(batch) - 1,
        )
        for batch in sizes
    ]


def without(profile: Profile, sizes: Sequence[int]) -> Profile:
    """The profile as if some sizes had not been measured."""
    kept = [index for index, size in enumerate(profile.batch_sizes) if size not in sizes]
    measurements = tuple(
        replace(
            x,
            forward=tuple(x.forward[i] for i in kept),
            backward=tuple(x.backward[i] for i in kept),
            spread=tuple(x.spread[i] for i in kept),
            peak_bytes=(),
        )
        for x in profile.measurements
    )
    sizes_kept = tuple(profile.batch_sizes[i] for i in kept)
    return replace(profile, batch_sizes=sizes_kept, measurements=measurements, checks=())
