"""What the foreground lets its background do in one iteration."""

from typing import NamedTuple

Operator = tuple[str, int]
"""One thing that a rank of the foreground does: a kind of span (``forward``, ``backward``, ``reshard``, ``sync``,
``update``) and the stage."""


class BackgroundLimits(NamedTuple):
    """For one iteration of the foreground."""

    open: bool
    """Whether the background may start anything; not while the foreground is measured alone."""
    share: float
    """Part of the time that the background may hold the device, in (0, 1]."""
    banned: frozenset[Operator]
    """Operators beside which it may start nothing."""


FREE = BackgroundLimits(open=True, share=1.0, banned=frozenset())
"""No restriction."""
