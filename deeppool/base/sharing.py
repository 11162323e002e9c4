"""Mechanisms by which a background job shares a device with a foreground, and named policies.

DeepPool (section 5, figure 11) adds them one after another: stream priorities, launch pacing, slowdown feedback, a
smaller background batch. Here each is a field, so that any of them can be measured alone; a policy is a named choice.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

from deeppool.base.arguments import check_fields, typed
from deeppool.base.number_checks import real_number, whole_number
from deeppool.errors import InvalidValueError

Priority = Literal["normal", "nice", "lowest"]
"""Priority of the background: that of the foreground; nice 19; or the lowest there is (SCHED_IDLE, a low-priority
stream)."""
Home = Literal["auto", "process", "thread"]
"""Location of a background: a process of its own, which isolates its failures; a thread of the rank's process, where a
GPU can distinguish its pieces from the foreground's; ``auto``: a thread on a GPU, a process on a CPU."""
Policy = Literal["none", "naive", "nice", "priority", "paced", "feedback"]

_BOUNDED = {
    "share": (1.0, "the part of the device that the background may have, for example 0.2 for 20 %"),
    "in_flight": (math.inf, "how many seconds of the background's work may be in flight, for example 0.001 for 1 ms"),
    "feedback": (
        math.inf,
        "the slowdown of one operator of the foreground from which on nothing runs beside it, for example 0.1 for 10 %",
    ),
    "max_slowdown": (math.inf, "how much slower the foreground may become on average, for example 0.03 for 3 %"),
}
"""Exclusive upper bound of each field, with the texts of the bound and of the field's meaning for the error message."""
_HOMES = {"process": "in a process of its own", "thread": "in a thread of the rank"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Sharing mechanisms with their limits; None or False means that a mechanism is not used."""

    priority: Priority = "lowest"
    share: float | None = None
    """Share of the device that the background may use while the foreground needs it too, in (0, 1): a weight of its
    control group, in place of a priority, on a CPU; a set of SMs on a GPU."""
    gaps_only: bool = False
    """Whether the background starts a piece only while the foreground computes nothing on this device."""
    pieces: int | None = None
    """Maximum number of pieces of the background's step in flight at once (launch pacing)."""
    in_flight: float | None = None
    """Maximum seconds of work in flight at once; a longer piece runs by itself."""
    feedback: float | None = None
    """Slowdown of one operator of the foreground from which on the background must not run during it: 0.1 is 10 %."""
    max_slowdown: float | None = None
    """Bound on the foreground's mean slowdown that a controller holds: 0.03 is 3 %."""
    home: Home = "auto"
    """Location of the background; not a mechanism."""

    def __post_init__(self) -> None:
        for name, (most, meaning) in _BOUNDED.items():
            value = getattr(self, name)
            if value is None:
                continue
            value = real_number(name, value)
            object.__setattr__(self, name, value)
            if not 0 < value < most:
                less = "finite" if most == math.inf else f"less than {most:g}"
                raise InvalidValueError(f"{name} must be more than 0 and {less}, got {value:g}: it is {meaning}")
        if self.pieces is not None:
            meaning = "it is how many pieces of the background's step may be in flight at once, for example 2, or None"
            object.__setattr__(self, "pieces", whole_number("pieces", self.pieces, note=meaning))
        check_fields(self)

    @property
    def in_pieces(self) -> bool:
        """Whether some mechanism decides piece by piece; otherwise a step runs as a whole, without overhead."""
        return self.gaps_only or any(
            value is not None for value in (self.pieces, self.in_flight, self.feedback, self.max_slowdown)
        )

    @property
    def learns(self) -> bool:
        """Whether the slowdown that the background causes is measured, in iterations without it."""
        return self.feedback is not None or self.max_slowdown is not None

    def __str__(self) -> str:
        chosen = [
            f"{name} {value:g}" for name, value in asdict(self).items() if isinstance(value, int | float) and value
        ]
        home = [_HOMES[self.home]] if self.home in _HOMES else []
        return ", ".join([f"priority {self.priority}", *chosen, *home])


POLICIES: dict[Policy, Sharing | None] = {
    "none": None,
    "naive": Sharing(priority="normal"),
    "nice": Sharing(priority="nice"),
    "priority": Sharing(),
    "paced": Sharing(pieces=2, in_flight=0.001),
    "feedback": Sharing(pieces=2, in_flight=0.001, feedback=0.1),
}
"""Named policies; None means no background."""


MEANINGS: dict[Policy, str] = {
    "none": "No background job: the foreground alone.",
    "naive": "As an equal of the foreground: what sharing costs when nothing is done about it.",
    "nice": "At nice 19, which still takes some time from the foreground.",
    "priority": "At the lowest priority there is: it runs when the foreground does not.",
    "paced": "The lowest priority, and its step in pieces of which only two, or 1 ms, are launched ahead.",
    "feedback": "Paced, and kept away from operators of the foreground that become 10 % slower beside it.",
}
"""Description of each policy, one sentence each."""


@typed
def find_sharing(policy: Policy | Sharing, max_slowdown: float | None = None) -> Sharing | None:
    """Returns the mechanisms of a policy, with a bound on the slowdown where one is given; None means no background.

    Raises:
        InvalidValueError: no such policy, or a bound where there is nothing to bind.
    """
    found = policy if isinstance(policy, Sharing) else POLICIES[policy]
    if max_slowdown is None:
        return found
    max_slowdown = real_number("max_slowdown", max_slowdown)
    if found is None:
        raise InvalidValueError(f"max_slowdown {max_slowdown:g} bounds a background, and policy '{policy}' has none")
    return replace(found, max_slowdown=max_slowdown)


def policy_name(sharing: Sharing | None) -> Policy | Literal["custom"]:
    """Returns the name of a policy by its mechanisms, ignoring their bound and the background's location."""
    bare = None if sharing is None else replace(sharing, max_slowdown=None, home="auto")
    return next((name for name, known in POLICIES.items() if known in (sharing, bare)), "custom")
