"""Buckets of parameters, and the announcement of those whose gradients are complete."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SPARSE = "one is sparse, as that of an embedding with sparse=True is (leave it False)"
"""End of an error about gradients of which one holds some rows only."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Parameters of one type whose gradients are summed together, and may be updated together."""

    parameters: tuple[torch.nn.Parameter, ...]
    part: int
    """Part of the model whose backward completes their gradients."""
    ranks: tuple[int, ...] = (0,)
    """Ranks that compute with them, over which their gradients are summed."""


OnReady = Callable[[Bucket], None]
"""Callback with a bucket whose gradients are complete on this process."""


class Announcer:
    """Announces buckets in their order, which is the same on all ranks, as soon as their gradients are complete.

    (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2)
    """

    def __init__(self, buckets: Sequence[Bucket], *, early: bool) -> None:
        """Sets the buckets.

        Args:
            buckets: all buckets of a step.
            early: whether to announce a bucket during the backward of its part, or when that has ended.
        """
        self._bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self._missing: dict[Bucket, int] = {}
        """Gradients that a bucket of the running part lacks."""
        self._open: list[Bucket] = []
        """Buckets of the running part that have not been announced, in order."""
        self._on_ready: OnReady = lambda bucket: None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)
            for parameter in self._bucket_of
            if early and parameter.requires_grad
        ]

    def expect(self, buckets: Sequence[Bucket], on_ready: OnReady) -> None:
        """Prepares for the gradients of a part's last backward in an update."""
        self._open, self._on_ready = list(buckets), on_ready
        self._missing = {bucket: len(bucket.parameters) for bucket in buckets}

    def part_done(self) -> None:
        """Announces the rest of the part's buckets: a parameter without a gradient counts as zeros."""
        while self._open:
            self._on_ready(self._open.pop(0))

    def close(self) -> None:
        """Ends announcements during the backward pass."""
        for hook in self._hooks:
            hook.remove()

    def _gradient_ready(self, parameter: torch.nn.Parameter) -> None:
        bucket = self._bucket_of[parameter]
        if bucket in self._missing:
            self._missing[bucket] -= 1
        while self._open and not self._missing[self._open[0]]:
            self._on_ready(self._open.pop(0))
