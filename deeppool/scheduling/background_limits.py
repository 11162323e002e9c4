"""Limits that the foreground sets for its background in one iteration."""

from typing import NamedTuple

Operator = tuple[str, int]
"""A part of a foreground iteration: a kind of span (``forward``, ``backward``, ``reshard``, ``sync``,
``update``) and the stage."""


class BackgroundLimits(NamedTuple):
    """Limits of a background during one iteration of the foreground."""

    open: bool
    """Whether the background may launch pieces; False while the foreground is measured alone."""
    share: float
    """Share of the time that the background may hold the device, in (0, 1]."""
    banned: frozenset[Operator]
    """Operators during which it may launch nothing."""


CLOSED = BackgroundLimits(open=False, share=1.0, banned=frozenset())
"""Limits that admit nothing."""
FREE = BackgroundLimits(open=True, share=1.0, banned=frozenset())
"""Limits without any restriction."""
