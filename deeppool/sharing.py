"""How a background job shares a device with a foreground: which mechanisms keep it out of the way, each by itself.

DeepPool (section 5, figure 11) adds them one after another: stream priorities, launch pacing, slowdown feedback, a
smaller background batch. Here each is a field, so that any of them can be measured alone; a policy is a named choice.
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal

from deeppool.errors import InvalidValueError

Priority = Literal["normal", "nice", "lowest"]
"""Of the background: the foreground's own; nice 19; the lowest there is (SCHED_IDLE, a low-priority stream)."""
Policy = Literal["none", "naive", "nice", "priority", "paced", "feedback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The mechanisms, and how far each goes; None or False: not used."""

    priority: Priority = "lowest"
    share: float | None = None
    """Part of the device that the background may have while the foreground wants it too, in (0, 1): a weight of its
    control group on a CPU, a set of SMs on a GPU."""
    gaps_only: bool = False
    """Whether the background starts a piece only while the foreground computes nothing on this device."""
    pieces: int | None = None
    """Of the background's step, at most so many in flight at once (launch pacing)."""
    in_flight: float | None = None
    """Seconds of work in flight at once, at most; a piece that is longer runs by itself."""
    feedback: float | None = None
    """Slowdown of one operator of the foreground from which on the background must not run beside it: 0.1 is 10 %."""
    max_slowdown: float | None = None
    """Bound on the foreground's mean slowdown that a controller holds: 0.03 is 3 %."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("share", 0, 1),
            ("in_flight", 0, math.inf),
            ("feedback", 0, math.inf),
            ("max_slowdown", 0, math.inf),
        ):
            value = getattr(self, name)
            if value is not None and not low < value < high:
                raise InvalidValueError(f"{name} must lie between {low} and {high:g}, got {value:g}")
        if self.pieces is not None and self.pieces < 1:
            raise InvalidValueError(f"pieces must be at least 1, got {self.pieces}")

    def __str__(self) -> str:
        chosen = [
            f"{name} {value:g}" for name, value in asdict(self).items() if isinstance(value, int | float) and value
        ]
        return ", ".join([f"priority {self.priority}", *chosen])


POLICIES: dict[Policy, Sharing | None] = {
    "none": None,
    "naive": Sharing(priority="normal"),
    "nice": Sharing(priority="nice"),
    "priority": Sharing(),
    "paced": Sharing(pieces=2, in_flight=0.001),
    "feedback": Sharing(pieces=2, in_flight=0.001, feedback=0.1),
}
"""Named choices; None: no background."""
