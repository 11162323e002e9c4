"""Which old nights go: a stated rule, and never what is not a night of ours.

Of each series, the nights of one preset on one machine, these stay:

* the latest ``keep`` nights;
* of each week before them, for a year, its last night, a complete one where there is one;
* the latest complete night, however old.
"""

import datetime
from collections import defaultdict
from collections.abc import Sequence

from deeppool.errors import InvalidValueError
from deeppool.evaluation.nightly_record import NightlyRun

KEEP = 14
"""Nights, unless told otherwise: as many as a verdict looks at."""
WEEKS = 52


def superfluous(nights: Sequence[NightlyRun], keep: int = KEEP) -> list[NightlyRun]:
    """The nights that may be removed, in the order given.

    Raises:
        InvalidValueError: keep below 1.
    """
    if keep < 1:
        raise InvalidValueError(f"keep must be at least 1 night, got {keep}")
    series: dict[tuple[str, str], list[NightlyRun]] = defaultdict(list)
    for night in nights:
        series[night.preset, night.device].append(night)
    kept = {id(night) for each in series.values() for night in _kept(each, keep)}
    return [night for night in nights if id(night) not in kept]


def _kept(series: Sequence[NightlyRun], keep: int) -> list[NightlyRun]:
    latest_first = sorted(series, key=_started, reverse=True)
    kept = latest_first[:keep]
    weeks: dict[tuple[int, int], list[NightlyRun]] = defaultdict(list)
    for night in latest_first[keep:]:
        if _started(latest_first[0]) - _started(night) <= datetime.timedelta(weeks=WEEKS):
            weeks[_started(night).isocalendar()[:2]].append(night)
    kept += [next((night for night in week if night.complete), week[0]) for week in weeks.values()]
    return kept + [night for night in latest_first if night.complete][:1]


def _started(night: NightlyRun) -> datetime.datetime:
    return datetime.datetime.fromisoformat(night.started)
