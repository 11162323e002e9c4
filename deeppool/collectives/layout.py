"""Which samples of a global batch lie on which GPU."""

from dataclasses import dataclass

from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Layout:
    """A global batch split over GPUs in contiguous shards that differ by at most one sample.

    The first ``batch % len(gpus)`` GPUs hold the larger shards, of ceil(batch / len(gpus)) samples.
    """

    gpus: tuple[int, ...]
    batch: int

    def __post_init__(self) -> None:
        if len(set(self.gpus)) != len(self.gpus) or not 1 <= len(self.gpus) <= self.batch:
            raise InvalidValueError(
                f"{self.batch} samples cannot be split over GPUs {list(self.gpus)}: "
                "each GPU once, at least one sample each"
            )

    @property
    def largest_shard(self) -> int:
        """Samples on the first GPU."""
        return -(-self.batch // len(self.gpus))

    def shard(self, gpu: int) -> range:
        """Returns the samples on a GPU; empty where it is not in the layout."""
        if gpu not in self.gpus:
            return range(0)
        position = self.gpus.index(gpu)
        size, larger = divmod(self.batch, len(self.gpus))
        start = position * size + min(position, larger)
        return range(start, start + size + (position < larger))
