"""The state of a partial all-reduce as arrays in one block of memory, which processes of one host can share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.partial.firing import EXACT, FiringRule
from deeppool.errors import InvalidValueError

Delivery = Literal["latest", "log"]
"""What a late rank receives: the newest result only, as published, or all that it has not received."""
LATEST_SLOTS = 3
"""Slots of ``latest``: the newest result, the one being written, and one that a rank may still be copying."""

ALIGNMENT = 64
"""Bytes of a cache line."""
DTYPES = ("float32", "float64", "int64")
"""Types of elements that can be summed."""


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """What the ranks of a partial all-reduce agree on."""

    rule: FiringRule
    """When rounds fire."""
    elements: int
    """Of a gradient."""
    dtype: str = "float32"
    """Of an element."""
    delivery: Delivery = "latest"

    def __post_init__(self) -> None:
        if self.delivery not in ("latest", "log"):
            raise InvalidValueError(f"delivery is 'latest' or 'log', got {self.delivery!r}")
        if self.delivery == "log" and self.rule.mode not in EXACT and self.rule.staleness_limit is None:
            raise InvalidValueError("delivery 'log' keeps results for late ranks and needs a staleness_limit, got None")
        if self.dtype not in DTYPES:
            raise InvalidValueError(
                f"elements are of type {', '.join(DTYPES)}, got {self.dtype} (no others are summed: hold such "
                "parameters in fp32, complex ones as pairs of numbers)"
            )
        if self.elements < 1:
            raise InvalidValueError(f"a partial all-reduce sums at least 1 element, got {self.elements}")

    def check(self, gradient: NDArray[Any]) -> None:
        """Checks that a gradient can be summed: rounding it, or reading its bytes as another type, would show nowhere.

        Raises:
            InvalidValueError: its shape or the type of its elements is another one.
        """
        if gradient.shape != (self.elements,):
            raise InvalidValueError(f"a gradient has shape ({self.elements},), got {gradient.shape}")
        if gradient.dtype != self.dtype:
            raise InvalidValueError(
                f"the elements of a gradient are of type {self.dtype}, got {gradient.dtype} (convert it, or join the "
                "ranks with this type)"
            )

    @property
    def slots(self) -> int:
        """Results that are kept."""
        # A rank's gradient goes into the next round, and then as many rounds as the limit may go without it.
        return LATEST_SLOTS if self.delivery == "latest" else (self.rule.staleness_limit or 1) + 2


class RoundState:
    """Counters, send buffers and results. Zeroed memory is the initial state."""

    def __init__(self, spec: RoundSpec, memory: Any) -> None:
        """Takes the memory: :meth:`size` bytes, zeroed by its first user."""
        found = {
            name: np.ndarray(dims, dtype=dtype, buffer=memory, offset=offset)
            for name, dims, dtype, offset in _layout(spec)
        }
        self.spec = spec
        self.event: NDArray[np.int32] = found["event"]
        """A number that grows with each change that another rank may wait for."""
        self.completed: NDArray[np.int64] = found["completed"]
        """Completed rounds; also the number of the round that is open."""
        self.performer: NDArray[np.int64] = found["performer"]
        """1 + the rank that performs the open round; 0: no rank does."""
        self.early: NDArray[np.int64] = found["early"]
        """1 + the slot with the sum of those who wait for the last rank; 0: none."""
        self.failed: NDArray[np.int64] = found["failed"]
        """1 + the first rank that gave up; 0: none."""
        self.process: NDArray[np.int64] = found["process"]
        """Of each rank: its process; 0: not started."""
        self.joined: NDArray[np.int64] = found["joined"]
        """Of each rank: 1 + the number of the round in which it arrived last; 0: none."""
        self.arrived: NDArray[np.float64] = found["arrived"]
        """Of each rank: when it arrived there."""
        self.finished: NDArray[np.int64] = found["finished"]
        """Of each rank: whether it will add no more gradients."""
        self.applied: NDArray[np.int64] = found["applied"]
        """Of each rank: the rounds whose results it has received."""
        self.taken: NDArray[np.int64] = found["taken"]
        """Of each rank: 1 + the number of the last round with a gradient of it; 0: none."""
        self.writing: NDArray[np.int64] = found["writing"]
        """Of each rank: whether it is writing into its send buffer."""
        self.active: NDArray[np.int64] = found["active"]
        """Of each rank: which of its two send buffers it adds to; a round in progress may read the other."""
        self.pending: NDArray[np.int64] = found["pending"]
        """Of each rank: gradients in the send buffer that it adds to."""
        self.numbers: NDArray[np.int64] = found["numbers"]
        """Of each slot: 1 + the number of its round; 0: empty."""
        self.counts: NDArray[np.int64] = found["counts"]
        """Of each slot and rank: gradients in the result."""
        self.sends: NDArray[Any] = found["sends"]
        """Of each rank: two send buffers."""
        self.results: NDArray[Any] = found["results"]
        """Of each slot: the sum."""

    @staticmethod
    def size(spec: RoundSpec) -> int:
        """Returns the bytes of the state."""
        *_, (_, dims, dtype, offset) = _layout(spec)
        return offset + int(np.prod(dims)) * np.dtype(dtype).itemsize


def _layout(spec: RoundSpec) -> Iterator[tuple[str, tuple[int, ...], str, int]]:
    """Yields name, dimensions, type and offset of each array."""
    ranks, slots, elements = spec.rule.ranks, spec.slots, spec.elements
    offset = 0
    for name, dims, dtype in (
        ("event", (1,), "int32"),
        *((name, (1,), "int64") for name in ("completed", "performer", "early", "failed")),
        ("arrived", (ranks,), "float64"),
        *(
            (name, (ranks,), "int64")
            for name in ("process", "joined", "finished", "applied", "taken", "writing", "active", "pending")
        ),
        ("numbers", (slots,), "int64"),
        ("counts", (slots, ranks), "int64"),
        ("sends", (ranks, 2, elements), spec.dtype),
        ("results", (slots, elements), spec.dtype),
    ):
        yield name, dims, dtype, offset
        size = int(np.prod(dims)) * np.dtype(dtype).itemsize
        offset += -(-size // ALIGNMENT) * ALIGNMENT
