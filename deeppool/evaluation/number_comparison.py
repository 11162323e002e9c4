"""Decides whether a number changed beyond its noise, by robust statistics over earlier nightly runs.

A single number is compared with the median of its earlier runs:

    band = max(5 · scale · sqrt(1 + π/2k), spread now + spread before)

over k runs; scale is the largest of

    its own     1.4826 · median absolute deviation, correction for few runs (Croux and Rousseeuw, 1992)
    the usual   median of the same relative scale over the notebook's clocked numbers: a few runs say little about one
                number's noise, and the machine is the same for all
    the floor   2 % of the median, and half a point for percentages

The root is the uncertainty of the median itself. Five scales are used because a scale from few runs may be far too
small.

Numbers of a group (layers of one profile) were measured within seconds of each other, which shows their noise within
one run. The group's shift is the median of its members' log-ratios to their own medians. A member's deviation from the
shift is compared with its own band of four scales, whose usual scale is the spread of all members around the shift. So
one slow layer is reported in the second run already, and a slow machine does not report every layer: it shows in the
sum of the layers, which is a single number.

A number that no clock made and that was equal in all earlier runs must be equal again, to 1e-6.

False reports, for normal noise of a single number: of 3 %, fewer than 1 in 1,000 after five runs or more; of 10 %, far
above the floor, 3 in 100 after five runs and 2 in 1,000 after fourteen. Detection of a layer that became 20 % slower at
three batch sizes: where layer times vary by 2 %, in 98 of 100 cases in the second run and always from the fourth on;
by 3 %, 67 and 99 after a week; by 5 %, 21 and 62 (test_number_comparison.py and test_regression_report.py in
tests/evaluation).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deeppool.evaluation.nightly_record import Observation

MIN_RUNS = 5
"""Earlier runs that a single number needs to be compared."""
HISTORY = 14
"""Newest earlier runs that are used."""
SCALES = 5.0
GROUP_SCALES = 4.0
FLOOR = 0.02
PERCENT_FLOOR = 0.5
"""Percentage points: of a slowdown near zero a relative floor is near zero, too."""
MIN_GROUP = 8
"""Members that a group needs to estimate its noise."""
SAME = 1e-6
CLOCKED = ("measured", "emulated")

# Correction of the median absolute deviation, which is too small for few values; above nine: n / (n - 0.8).
_CORRECTION = {1: 1.0, 2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.2, 7: 1.14, 8: 1.129, 9: 1.107}


@dataclass(frozen=True, slots=True)
class NumberComparison:
    """One number compared with its earlier runs."""

    observation: Observation
    usual: float
    """Median of the earlier runs, in the number's unit."""
    band: float
    """Half-width of the noise band around the expected value, in the number's unit."""
    runs: int
    """Number of earlier runs used."""
    changed: bool


def robust_scale(values: Sequence[float]) -> float:
    """Estimates the standard deviation of normal noise, robust against outliers; 0 for one value."""
    middle = statistics.median(values)
    count = len(values)
    correction = _CORRECTION.get(count, count / (count - 0.8))
    return 1.4826 * correction * statistics.median(abs(value - middle) for value in values)


def compare_numbers(
    numbers: Iterable[Observation], history: Mapping[str, Sequence[Observation]]
) -> tuple[list[NumberComparison], list[Observation]]:
    """Compares the numbers of one notebook with their earlier values.

    Args:
        numbers: the numbers.
        history: earlier values by a number's name, the newest last.

    Returns:
        The comparisons, and the numbers whose history is too short for one.
    """
    known = {name: list(values)[-HISTORY:] for name, values in history.items() if values}
    groups: dict[str, list[Observation]] = {}
    for observation in numbers:
        groups.setdefault(observation.group, []).append(observation)
    compared: list[NumberComparison] = []
    young: list[Observation] = []
    for group, members in groups.items():
        old = [each for each in members if each.name in known]
        young += [each for each in members if each.name not in known]
        grouped = [each for each in old if _has_ratio(each, known[each.name])]
        if group and len(grouped) >= MIN_GROUP:
            compared += _compare_group(grouped, known)
            old = [each for each in old if each not in grouped]
        usual = _usual_scale(old, known)
        for each in old:
            comparison = _compare_single(each, known[each.name], usual)
            if comparison is None:
                young.append(each)
            else:
                compared.append(comparison)
    return compared, young


def _compare_single(number: Observation, past: Sequence[Observation], usual_scale: float) -> NumberComparison | None:
    values = [each.value for each in past]
    middle = statistics.median(values)
    if _is_constant(number, values):
        band = SAME * abs(middle)
    elif len(values) < MIN_RUNS:
        return None
    else:
        floor = max(FLOOR * abs(middle), PERCENT_FLOOR if number.unit == "%" else 0.0)
        scale = max(robust_scale(values), usual_scale * abs(middle), floor)
        band = max(SCALES * scale * _uncertainty(len(values)), _spreads(number, past))
    return NumberComparison(number, middle, band, len(values), abs(number.value - middle) > band)


def _compare_group(
    members: Sequence[Observation], known: Mapping[str, Sequence[Observation]]
) -> list[NumberComparison]:
    """Compares the members by log-ratios, in which the machine's speed is a common shift."""
    usual = {each.name: statistics.median(past.value for past in known[each.name]) for each in members}
    ratios = {each.name: math.log(each.value / usual[each.name]) for each in members}
    shift = statistics.median(ratios.values())
    across = robust_scale(list(ratios.values()))
    residuals = _past_residuals(members, known, usual)
    compared = []
    for each in members:
        past = known[each.name]
        own = robust_scale(residuals[each.name]) if len(past) > 2 else 0.0
        share = GROUP_SCALES * max(across, own, FLOOR) * _uncertainty(len(past))
        band = max(share, _spreads(each, past) / usual[each.name])
        deviation = ratios[each.name] - shift
        # If most layers became slower, the others deviate from the shift without a change of their own.
        same_direction = deviation * ratios[each.name] > 0 and abs(ratios[each.name]) > band / 2
        changed = same_direction and abs(deviation) > band
        half_width = usual[each.name] * math.expm1(band)
        compared.append(NumberComparison(each, usual[each.name], half_width, len(past), changed))
    return compared


def _past_residuals(
    members: Sequence[Observation], known: Mapping[str, Sequence[Observation]], usual: Mapping[str, float]
) -> dict[str, list[float]]:
    """Returns the deviations of each member from the group's shift in each earlier run, the newest run first."""
    runs = max(len(known[each.name]) for each in members)
    residuals: dict[str, list[float]] = {each.name: [] for each in members}
    for back in range(1, runs + 1):
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
    """Returns the median relative scale of the clocked numbers from run to run; 0 if there are too few runs."""
    shares = []
    for each in numbers:
        values = [past.value for past in known[each.name]]
        middle = statistics.median(values)
        if each.basis in CLOCKED and each.unit != "%" and len(values) >= MIN_RUNS and middle:
            shares.append(robust_scale(values) / abs(middle))
    return statistics.median(shares) if shares else 0.0


def _is_constant(number: Observation, values: Sequence[float]) -> bool:
    """Whether the number is not from a clock and equal in two earlier runs or more."""
    exact = max(values) - min(values) <= 1e-9 * abs(values[0])
    return number.basis not in CLOCKED and len(values) > 1 and exact


def _uncertainty(runs: int) -> float:
    """Returns the standard deviation of the difference to the median of earlier runs, for unit noise."""
    return math.sqrt(1 + (1 / runs if runs < 3 else math.pi / 2 / runs))


def _spreads(number: Observation, past: Sequence[Observation]) -> float:
    """Returns the spread within this run plus the median spread within earlier ones, in the number's unit."""
    return number.spread + statistics.median(each.spread for each in past)


def _has_ratio(number: Observation, past: Sequence[Observation]) -> bool:
    return number.value > 0 and all(each.value > 0 for each in past)
