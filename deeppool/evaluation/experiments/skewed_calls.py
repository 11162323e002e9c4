"""Measures how long ranks wait in an all-reduce when they arrive one after the other (eager-SGD's figures 8 and 9)."""

import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deeppool.base.number_checks import whole_number
from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.state import RoundSpec
from deeppool.errors import InvalidValueError
from deeppool.execution.transports.native.build import load_engine
from deeppool.execution.transports.shared_memory import create
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder
from deeppool.processes.shared_page import SHARED_MEMORY
from deeppool.units import format_seconds

Transport = Literal["shared-memory", "tcp-native", "tcp-python"]
TIMEOUT = 120.0
"""Seconds without progress after which a rank counts as hung."""


@dataclass(frozen=True, slots=True)
class SkewedCalls:
    """Latencies of one mode, by iteration and rank."""

    transport: Transport
    mode: Mode
    elements: int
    skew: float
    """Seconds between the arrivals of a rank and the next."""
    latencies: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    """Whether the round took the rank's gradient of its own call."""

    @property
    def mean(self) -> float:
        """Mean latency of all ranks and iterations."""
        return float(self.latencies.mean())

    @property
    def median(self) -> float:
        """Median over iterations of the mean over ranks: what a rank that waits for a core leaves alone."""
        return float(np.median(self.latencies.mean(axis=1)))

    @property
    def active(self) -> float:
        """Mean number of ranks whose gradient arrives in time."""
        return float(self.accepted.sum(axis=1).mean())

    @property
    def ideal(self) -> float:
        """Mean latency if every round completed at the instant at which it fires."""
        iterations, ranks = self.latencies.shape
        rule = FiringRule(ranks, self.mode)
        firing = [_firing(rule, number) for number in range(iterations)]
        return float(np.mean([max(0, last - rank) * self.skew for last in firing for rank in range(ranks)]))

    def __str__(self) -> str:
        return (
            f"{self.transport}, {self.mode}, {4 * self.elements} B: mean {format_seconds(self.mean)}, median "
            f"{format_seconds(self.median)}, by the skew alone {format_seconds(self.ideal)}, {self.active:.1f} of "
            f"{self.latencies.shape[1]} ranks in time"
        )


def _firing(rule: FiringRule, number: int) -> int:
    """Returns the rank whose arrival fires a round."""
    if rule.mode == "majority":
        return rule.initiator(number)
    return 0 if rule.mode == "solo" else rule.ranks - 1


def skewed_calls(
    mode: Mode,
    *,
    transport: Transport = "shared-memory",
    ranks: int = 32,
    iterations: int = 64,
    skew: float = 0.001,
    elements: int = 1,
) -> SkewedCalls:
    """Lets processes call a partial all-reduce 1, 2, … times the skew after a common start, and measures each call.

    Args:
        mode: of the all-reduce; ``quorum`` needs a number and is not measured.
        transport: ``tcp-native`` where the engine can be compiled.
        ranks: processes; at least 2.
        iterations: calls of each.
        skew: seconds between the arrivals of a rank and the next.
        elements: float32 of a gradient.

    Raises:
        InvalidValueError: a mode or transport that cannot be measured here, or too few ranks.
        RankFailedError: a rank failed; every process has ended by then.
    """
    whole_number("ranks", ranks, 2, note="one rank waits for no other")
    if mode == "quorum" or (transport == "tcp-native" and load_engine() is None):
        raise InvalidValueError(f"mode {mode!r} cannot be measured over {transport!r} here (try 'tcp-python')")
    with private_folder() as folder, RankGroup(LocalLauncher("cpu", ranks)) as group:
        memory = SHARED_MEMORY / folder.name
        memory = memory if memory.is_dir() else folder
        create(memory / "meeting", RoundSpec(FiringRule(ranks, "full"), 1, "float64"))
        create(memory / "measured", RoundSpec(FiringRule(ranks, mode, staleness_limit=None), elements))
        secret = secrets.token_hex(32)
        for rank in range(ranks):
            group.start("deeppool.evaluation.experiments.skewed_rank").send(
                "setup", folder=str(memory), rank=rank, ranks=ranks, transport=transport, mode=mode,
                secret=secret, elements=elements, iterations=iterations, skew=skew,
            )  # fmt: skip
        answers = group.collect("done", TIMEOUT, "while it measured")
    latencies, accepted = (np.array([answer[key] for answer in answers]).T for key in ("latencies", "accepted"))
    return SkewedCalls(transport, mode, elements, skew, latencies, accepted)
