"""Two runs compared: which differences are more than what differs between their rounds."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.collocation.condition_results import ConditionResults
from deeppool.records.run_comparison import FigureChange, Unit, compare_runs, format_change, format_value
from deeppool.records.run_record import RunRecord, TimeSummary
from tests.figures.records import run_of


def with_times(run: RunRecord, times: TimeSummary) -> RunRecord:
    return replace(run, foreground=replace(run.foreground, iteration_time=times))


def change(name: str, before: RunRecord, after: RunRecord) -> FigureChange:
    (found,) = (one for one in compare_runs(before, after).figures if one.name == name)
    return found


def test_a_run_does_not_differ_from_itself() -> None:
    found = compare_runs(run_of(), run_of())
    assert found.settings == ()
    assert {one.verdict for one in found.figures} == {"equal"}
    assert str(found).endswith("nothing beyond noise")


def test_noise_is_what_the_margins_of_both_runs_explain() -> None:
    """3 ms and 4 ms are 5 ms."""
    first = replace(run_of().foreground.iteration_time, mean=0.1, margin=0.003)
    runs = [with_times(run_of(), one) for one in (first, replace(first, mean=0.104, margin=0.004))]
    found = change("iteration time, mean", *runs)
    assert found.noise == pytest.approx(0.005)
    assert found.verdict == "within noise"
    more = change("iteration time, mean", runs[0], with_times(run_of(), replace(first, mean=0.106, margin=0.004)))
    assert (more.verdict, format_change(more)) == ("beyond noise", "+6.0 %")


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.0, 0.1), (0.16, 0.9, 1.0)])
def test_of_runs_that_are_alike_few_differ_and_of_others_nearly_all(shift: float, least: float, most: float) -> None:
    """Seven rounds of 15 iterations each; rounds differ by 1 %, iterations by 10 % that last for five of them."""
    draw = random.Random(0)

    def measured(by: float) -> TimeSummary:
        turns = []
        for _ in range(7):
            middle = 0.1 * (1 + by + draw.gauss(0, 0.01))
            turns.append([middle * (1 + noise) for noise in (draw.gauss(0, 0.1) for _ in range(3)) for _ in range(5)])
        return ConditionResults(turns, [1.0], 10.5).phase(batch=1).iteration_time

    differ = 0
    for _ in range(200):
        first, second = measured(0.0), measured(shift)
        found = change("iteration time, mean", with_times(run_of(), first), with_times(run_of(), second))
        differ += found.verdict == "beyond noise"
    assert least <= differ / 200 <= most


def test_a_run_of_which_no_rounds_are_known_has_no_known_noise() -> None:
    once = with_times(run_of(), TimeSummary(0.1, 0.1, 0.1, 1))
    assert change("iteration time, mean", run_of(), once).verdict == "noise unknown"
    assert change("slowdown", run_of(), once).noise is None


def test_a_harvest_is_compared_by_its_margins() -> None:
    sure = replace(run_of(), background=replace(run_of().background, harvest_margin=0.03))
    other = replace(sure, background=replace(sure.background, harvest=0.35, harvest_margin=0.02))
    assert change("harvest", sure, other).verdict == "beyond noise"
    assert change("harvest", run_of(), other).verdict == "noise unknown"


def test_a_throughput_of_which_no_spread_is_known_says_so() -> None:
    faster = replace(run_of(), background=replace(run_of().background, throughput=45.0))
    found = change("background throughput", run_of(), faster)
    assert (found.verdict, found.change, format_change(found)) == ("noise unknown", 15.0, "+50.0 %")


def test_a_run_without_background_lacks_its_figures() -> None:
    found = change("harvest", run_of(), run_of(background=False))
    assert (found.before, found.after, found.verdict, format_change(found)) == (0.3, None, "in one run only", "–")
    names = [one.name for one in compare_runs(run_of(background=False), run_of(background=False)).figures]
    assert "harvest" not in names


def test_what_was_different_about_the_runs_is_listed() -> None:
    other = replace(run_of(), global_batch=32, policy="naive")
    found = compare_runs(run_of(), other)
    assert found.settings == (("global batch", "64", "32"), ("policy", "priority", "naive"))
    text = found.explain()
    assert "global batch" in text
    assert "within noise" in text or "equal" in text
    assert "tiny beside mobilenet_v2 (2026-11-21 05:00:00)" in text


def test_it_is_a_file_like_all_records(tmp_path: Path) -> None:
    found = compare_runs(run_of(), replace(run_of(), global_batch=32))
    assert dp.load(dp.save(found, tmp_path / "comparison.json")) == found


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (0.0125, "s", "12.5 ms"),
        (0.125, "share", "12.5 %"),
        (59.51, "samples/s", "59.5 samples/s"),
        (1.256, "1", "1.26"),
    ],
)
def test_figures_are_read_as_people_write_them(value: float | None, unit: Unit, text: str) -> None:
    assert format_value(value, unit) == text
