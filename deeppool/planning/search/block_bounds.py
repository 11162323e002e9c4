"""Lower bounds of a block for all GPU partitions and all GPU counts of fork and join at once.

Side by side, GPU groups take max F + max (T - F) + sum X (see ``parallel_block``). No plan can beat

    max T + sum X                         with each X at its least but for one group's,

nor, since one group's forward pass and another one's backward pass may be the longest,

    max least F + max least (T - F) + sum X.

The second bound is the better one where forward and backward scale differently, as measured layers do. It takes
longer to compute than the first one, and is computed only where that one does not suffice.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from deeppool.costs.table import Floats
from deeppool.planning.search.branch_bounds import BranchBounds
from deeppool.planning.search.gpu_partition import PartitionSet

NEVER = 1e30
"""Finite number of seconds in place of infinity for what the limit forbids."""


class BlockBounds:
    """Lower bounds of one block."""

    def __init__(
        self, division: PartitionSet, reaches: Sequence[BranchBounds], own: Floats, own_parts: Floats, slack: Floats
    ) -> None:
        """Finds the first bound.

        Args:
            division: partitions of the GPUs among the branches.
            reaches: the branches.
            own: (fork, join) price of the join itself.
            own_parts: (3, fork, join) forward, backward and price of GPU-seconds in it.
            slack: (fork, join) seconds of transfers that the join's limit permits.
        """
        self._division, self._reaches = division, reaches
        self._own_parts = own_parts
        self._least = np.minimum([reach.least for reach in reaches], NEVER)
        additive = np.minimum([reach.additive for reach in reaches], NEVER)
        excess = np.minimum([reach.total for reach in reaches], NEVER) - additive
        arriving = self._lanes(self._least).sum(axis=1)
        summed = self._lanes(additive).sum(axis=1) if reaches[0].priced else arriving[:, None, :]
        time = self._lanes(excess).max(axis=1) + summed + own
        permitted = (time < NEVER / 2) & (arriving[:, None, :] <= slack)
        self.time: Floats = np.where(permitted, time, np.inf)
        """(arrangement, fork, join) seconds that no way can beat; inf where none is permitted."""
        self.least: Floats = arriving.min(axis=0)
        """(join,) seconds of transfers into the join that no way can beat."""
        self.sharp = False
        """Whether ``time`` includes both bounds."""

    def sharpen(self) -> None:
        """Computes the second bound too, and keeps the larger ones."""
        self.sharp = True
        self.time = np.maximum(self.time, self._passes.sum(axis=1))

    @property
    def passes(self) -> Floats:
        """(3, fork, join) forward, backward and price of GPU-seconds that no way can beat, in any arrangement."""
        passes: Floats = np.where(np.isfinite(self.time[:, None]), self._passes, np.inf).min(axis=0)
        return passes

    @cached_property
    def _passes(self) -> Floats:
        """(arrangement, 3, fork, join) of both passes and GPU-seconds that no way can beat, in each arrangement."""
        # Transfers count half in either pass.
        share = 1 - self._reaches[0].spent_share
        half = self._least[:, :, None, None, :] * share / 2
        parts = np.minimum([reach.passes for reach in self._reaches], NEVER)
        excess = parts[:, :, :2] - half
        both = self._lanes(excess).max(axis=1) + self._lanes(half).sum(axis=1)
        spent = self._lanes(parts[:, :, 2:]).sum(axis=1) if self._reaches[0].priced else both[:, :1] * 0
        passes: Floats = np.concatenate([both, spent], axis=1) + self._own_parts
        return passes

    def _lanes(self, seconds: Floats) -> Floats:
        """Returns (arrangement, lane, …) sums over the branches of each lane; 0 where there is no such lane."""
        # A last entry of zeros for lanes with fewer branches, and arrangements with fewer lanes, than others.
        branches = _padded(seconds.reshape(-1, *seconds.shape[2:]))
        lanes: Floats = _padded(branches[self._division.members].sum(axis=1))[self._division.used]
        return lanes


def _padded(values: Floats) -> Floats:
    """Returns the values with a row of zeros appended."""
    return np.concatenate([values, np.zeros((1, *values.shape[1:]))])
