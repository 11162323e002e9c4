"""Two runs compared: which differences are more than the noise of their iterations."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.run_comparison import FigureChange, compare_runs, format_change
from deeppool.run_record import RunRecord, TimeSummary, summarise
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


def test_noise_is_two_standard_errors_of_the_difference() -> None:
    """50 times each with a standard deviation of 10 ms: 2 x sqrt(2) x 10 ms / sqrt(50) is 4 ms."""
    times = TimeSummary(p50=0.1, p99=0.1 + 2.326 * 0.01, mean=0.1, count=50)
    found = change(
        "iteration time, mean", with_times(run_of(), times), with_times(run_of(), replace(times, mean=0.103))
    )
    assert found.noise == pytest.approx(0.004)
    assert found.verdict == "within noise"
    more = change("iteration time, mean", with_times(run_of(), times), with_times(run_of(), replace(times, mean=0.105)))
    assert (more.verdict, format_change(more)) == ("beyond noise", "+5.0 %")


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.0, 0.1), (0.5, 0.9, 1.0)])
def test_of_runs_that_are_alike_few_differ_and_of_others_nearly_all(shift: float, least: float, most: float) -> None:
    """Normal times of which 100 each were measured, and a shift in standard deviations."""
    draw = random.Random(0)
    differ = 0
    for _ in range(200):
        first, second = ([0.1 + 0.01 * (draw.gauss(0, 1) + by) for _ in range(100)] for by in (0.0, shift))
        found = change(
            "iteration time, mean", with_times(run_of(), summarise(first)), with_times(run_of(), summarise(second))
        )
        differ += found.verdict == "beyond noise"
    assert least <= differ / 200 <= most


def test_a_run_with_one_iteration_has_no_known_noise() -> None:
    once = with_times(run_of(), TimeSummary(0.1, 0.1, 0.1, 1))
    assert change("iteration time, mean", run_of(), once).verdict == "noise unknown"
    assert change("slowdown", run_of(), once).noise is None


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
