"""The sum of gradients over the ranks that computed a part of them."""

from collections.abc import Sequence

import torch

from deeppool.training.bucket import Bucket


class GradientSum:
    """Sums gradients over the ranks of a bucket; this one is of a single rank, and has nothing to do."""

    def start(self, bucket: Bucket) -> None:
        """Starts to replace the gradients of a bucket by their sums."""

    def finish(self, bucket: Bucket) -> None:
        """Waits for them."""

    def patterns(self, buckets: Sequence[Bucket]) -> tuple[str, ...]:
        """Returns the names of the patterns by which buckets are summed; none: by the library's own all-reduce."""
        return ()

    def total(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by its sum over all ranks."""
