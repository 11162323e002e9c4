"""Whether a number moved beyond its own noise: robust statistics over the nights before.

A number alone is compared with the median of its nights:

    band = max(5 · scale · sqrt(1 + π/2k), spread tonight + spread before)

over k nights; scale is the largest of

    its own     1.4826 · median absolute deviation, widened for few nights (Croux and Rousseeuw, 1992)
    the usual   the median over the notebook's clocked numbers of the same, as a share: few nights say little about
                one number's noise, and the machine that makes it is the same for all
    the floor   2 % of the median, and half a point for percentages

The root is the uncertainty of the median itself. Five scales, as a scale from few nights may be far too small.

Numbers of a group (layers of one profile) were measured in the same seconds, which shows their noise within one
night. Tonight's shift of the group is the median of its members' log-ratios to their own medians; what a member
deviates from the shift is judged by its own band, of four scales, whose usual scale is the spread of all members around
the shift. So one slow layer is named in the second night already, and a slow machine does not name every layer: that is
told by the sum of the layers, a number alone.

A number that no clock made and that was the same every night is the same again, to 1e-6.

How often chance alone names a number: with normal noise of 3 % of a number alone fewer than 1 in 1,000 over five
nights or more; of 10 %, far above the floor, 3 in 100 after five nights and 2 in 1,000 after fourteen. How surely a
layer is named that got 20 % slower at three batch sizes, where layer times vary by 2 %: 98 times of 100 in the second
night, always from the fourth on; where they vary by 3 %, 67 times and 99 after a week; by 5 %, 21 and 62
(tests/evaluation/test_noise.py, test_verdict.py).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deeppool.evaluation.nightly_record import Observation

NIGHTS = 5
"""That a number alone needs before it is judged."""
HISTORY = 14
"""Nights before tonight that count, the latest ones."""
SCALES = 5.0
GROUP_SCALES = 4.0
FLOOR = 0.02
PERCENT_FLOOR = 0.5
"""Points; a slowdown of about nothing has no share of itself to go by."""
GROUP = 8
"""Members that a group needs to show its noise."""
SAME = 1e-6
CLOCKED = ("measured", "emulated")

# The median absolute deviation of few values is too small; for more than nine: n / (n - 0.8).
_WIDENED = {1: 1.0, 2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.2, 7: 1.14, 8: 1.129, 9: 1.107}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One number against its nights."""

    observation: Observation
    usual: float
    """Median of its nights, in its unit."""
    band: float
    """That noise explains, to either side of what was expected tonight; in its unit."""
    nights: int
    moved: bool


def robust_scale(values: Sequence[float]) -> float:
    """Like the standard deviation of normal noise, of which a minority of outliers changes little; 0 for one value."""
    middle = statistics.median(values)
    count = len(values)
    widened = _WIDENED.get(count, count / (count - 0.8))
    return 1.4826 * widened * statistics.median(abs(value - middle) for value in values)


def judge(
    tonight: Iterable[Observation], history: Mapping[str, Sequence[Observation]]
) -> tuple[list[Judgement], list[Observation]]:
    """Judges the numbers of one notebook.

    Args:
        tonight: its numbers.
        history: by a number's name its earlier values, the latest last.

    Returns:
        The judgements, and the numbers that have too short a history for one.
    """
    known = {name: list(values)[-HISTORY:] for name, values in history.items() if values}
    groups: dict[str, list[Observation]] = {}
    for observation in tonight:
        groups.setdefault(observation.group, []).append(observation)
    judged: list[Judgement] = []
    young: list[Observation] = []
    for group, members in groups.items():
        old = [each for each in members if each.name in known]
        young += [each for each in members if each.name not in known]
        together = [each for each in old if _has_ratio(each, known[each.name])]
        if group and len(together) >= GROUP:
            judged += _judge_together(together, known)
            old = [each for each in old if each not in together]
        usual = _usual_scale(old, known)
        for each in old:
            verdict = _judge_alone(each, known[each.name], usual)
            if verdict is None:
                young.append(each)
            else:
                judged.append(verdict)
    return judged, young


def _judge_alone(tonight: Observation, past: Sequence[Observation], usual_scale: float) -> Judgement | None:
    values = [each.value for each in past]
    middle = statistics.median(values)
    if _is_constant(tonight, values):
        band = SAME * abs(middle)
    elif len(values) < NIGHTS:
        return None
    else:
        floor = max(FLOOR * abs(middle), PERCENT_FLOOR if tonight.unit == "%" else 0.0)
        scale = max(robust_scale(values), usual_scale * abs(middle), floor)
        band = max(SCALES * scale * _uncertainty(len(values)), _spreads(tonight, past))
    return Judgement(tonight, middle, band, len(values), abs(tonight.value - middle) > band)


def _judge_together(members: Sequence[Observation], known: Mapping[str, Sequence[Observation]]) -> list[Judgement]:
    """By log-ratios, in which a machine's speed is a shift."""
    usual = {each.name: statistics.median(past.value for past in known[each.name]) for each in members}
    ratios = {each.name: math.log(each.value / usual[each.name]) for each in members}
    shift = statistics.median(ratios.values())
    across = robust_scale(list(ratios.values()))
    residuals = _past_residuals(members, known, usual)
    judged = []
    for each in members:
        past = known[each.name]
        own = robust_scale(residuals[each.name]) if len(past) > 2 else 0.0
        share = GROUP_SCALES * max(across, own, FLOOR) * _uncertainty(len(past))
        band = max(share, _spreads(each, past) / usual[each.name])
        deviation = ratios[each.name] - shift
        # Where most of the layers got slower, those that did not are fast for their company, and did not move.
        own_way = deviation * ratios[each.name] > 0 and abs(ratios[each.name]) > band / 2
        moved = own_way and abs(deviation) > band
        judged.append(Judgement(each, usual[each.name], usual[each.name] * math.expm1(band), len(past), moved))
    return judged


def _past_residuals(
    members: Sequence[Observation], known: Mapping[str, Sequence[Observation]], usual: Mapping[str, float]
) -> dict[str, list[float]]:
    """Per member what it deviated from the group's shift in each night before; nights counted from the latest."""
    nights = max(len(known[each.name]) for each in members)
    residuals: dict[str, list[float]] = {each.name: [] for each in members}
    for back in range(1, nights + 1):
        ratios = {
            each.name: math.log(known[each.name][-back].value / usual[each.name])
            for each in members
            if len(known[each.name]) >= back
        }
        shift = statistics.median(ratios.values())
        for name, ratio in ratios.items():
            residuals[name].append(ratio - shift)
    return residuals


def _usual_scale(numbers: Sequence[Observation], known: Mapping[str, Sequence[Observation]]) -> float:
    """The median share that clocked numbers vary by from night to night; 0 where too few nights say."""
    shares = []
    for each in numbers:
        values = [past.value for past in known[each.name]]
        middle = statistics.median(values)
        if each.basis in CLOCKED and each.unit != "%" and len(values) >= NIGHTS and middle:
            shares.append(robust_scale(values) / abs(middle))
    return statistics.median(shares) if shares else 0.0


def _is_constant(tonight: Observation, values: Sequence[float]) -> bool:
    """Two nights at least agree on a number that no clock made: it is computed from what does not change."""
    exact = max(values) - min(values) <= 1e-9 * abs(values[0])
    return tonight.basis not in CLOCKED and len(values) > 1 and exact


def _uncertainty(nights: int) -> float:
    """Of the difference between tonight and the median of some nights, for noise of 1."""
    return math.sqrt(1 + (1 / nights if nights < 3 else math.pi / 2 / nights))


def _spreads(tonight: Observation, past: Sequence[Observation]) -> float:
    """Within tonight, and within a night before, in the number's unit."""
    return tonight.spread + statistics.median(each.spread for each in past)


def _has_ratio(tonight: Observation, past: Sequence[Observation]) -> bool:
    return tonight.value > 0 and all(each.value > 0 for each in past)
