"""A nightly run compared with earlier ones: changes are reported, noise is not."""

import random
from dataclasses import replace

import pytest

from deeppool.base import serialization
from deeppool.evaluation.entries import Check
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome, Observation
from deeppool.evaluation.observations import of_profile
from deeppool.evaluation.regression_report import RegressionReport, compare_with_earlier
from deeppool.profiling.table import Profile
from tests.strategies import make_graph, profile_from_times

LAYERS = 12


def nightly_run(day: int, *outcomes: NotebookOutcome, **fields) -> NightlyRun:
    name = f"2026-11-{day:02d}"
    whole = NightlyRun(
        name=name,
        preset="quick",
        device="a processor",
        notebooks=tuple(outcome.name for outcome in outcomes),
        started=f"{name}T02:00:00+00:00",
        finished=f"{name}T03:00:00+00:00",
        versions={"torch": "2.13.0"},
        outcomes=outcomes,
    )
    return replace(whole, **fields)


def done(name: str = "fig5", *observations: Observation, checks: tuple[Check, ...] = (), **fields) -> NotebookOutcome:
    whole = NotebookOutcome(name, name, "done", "", True, {}, 10.0, "", "", observations, checks)
    return replace(whole, **fields)


def failed(problem: str = "cell 3: boom", name: str = "fig5") -> NotebookOutcome:
    return done(name, state="failed", problem=problem)


def measured(value: float, *, name: str = "search time", spread: float = 0.0, unit: str = "s") -> Observation:
    return Observation(name, value, unit, "measured", spread)


def simulated(value: float) -> Observation:
    return Observation("throughput", value, "x", "simulated")


def profile(
    slower: dict[int, float] | None = None, *, noise: float = 0.0, seed: int = 0, machine: float = 1.0
) -> Profile:
    """Twelve distinct layers at three batch sizes; some are slower, every time has noise, the machine has a speed."""
    graph = make_graph([(), *((index,) for index in range(LAYERS - 1))])
    draw = random.Random(seed)

    def seconds(layer: int):
        factor = (slower or {}).get(layer, 1.0) * machine
        return lambda batch: factor * 1e-3 * (layer + 1) * batch * (1 + draw.gauss(0, noise))

    made = profile_from_times(graph, [seconds(layer) for layer in range(LAYERS)], batch_sizes=(1, 2, 4))
    # Estimates are no observations.
    return replace(made, provenance="measured")


def layers(day: int, *arguments, **keywords) -> NightlyRun:
    return nightly_run(day, done("fig5", *of_profile(profile(*arguments, **keywords), "profile")))


def named(found: RegressionReport) -> list[str]:
    return [number.name for number in found.moved]


# -- layers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [1, 2, 6, 14])
def test_a_layer_20_percent_slower_is_reported_and_no_other(runs: int) -> None:
    history = [layers(day, noise=0.01, seed=day) for day in range(1, runs + 1)]
    found = compare_with_earlier(layers(20, {7: 1.2}, noise=0.01, seed=99), history)
    slow = [number for number in found.moved if "layer" in number.name and "all layers" not in number.name]
    assert {number.name.split(": ")[2] for number in slow} == {
        *(f"layer layer7 at batch {batch}" for batch in (1, 2, 4)),
        "layer layer7, mean over batches",
    }
    assert all(0.15 < number.change < 0.25 for number in slow)
    assert "layer layer7 at batch 1" in found.explain()
    assert not found.fine


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "runs", "least"), [(0.02, 1, 90), (0.03, 1, 55), (0.03, 7, 95), (0.05, 7, 50)])
def test_how_often_a_layer_20_percent_slower_is_reported(noise: float, runs: int, least: int) -> None:
    found = [
        compare_with_earlier(
            layers(20, {7: 1.2}, noise=noise, seed=seed),
            [layers(day, noise=noise, seed=1000 * day + seed) for day in range(1, runs + 1)],
        )
        for seed in range(100)
    ]
    assert sum(any("layer layer7" in name for name in named(each)) for each in found) >= least
    assert sum(any("layer layer7" not in name for name in named(each)) for each in found) <= 2


def test_a_faster_layer_is_reported_too() -> None:
    found = compare_with_earlier(layers(2, {3: 0.8}), [layers(1)])
    assert all("layer layer3" in name for name in named(found))
    assert len(found.moved) == 4


def test_two_identical_runs_report_nothing() -> None:
    found = compare_with_earlier(layers(2), [layers(1)])
    assert found.fine and found.judged == 4 * LAYERS
    assert "nothing changed, nothing failed" in str(found)


def test_a_slow_machine_is_reported_by_the_sum_and_not_by_every_layer() -> None:
    history = [layers(day, noise=0.01, seed=day) for day in range(1, 8)]
    found = compare_with_earlier(layers(9, noise=0.01, seed=9, machine=1.3), history)
    assert named(found) and all("all layers at batch" in name for name in named(found))


def test_where_most_layers_became_slower_the_others_are_not_reported_as_fast() -> None:
    slow = dict.fromkeys(range(9), 1.3)
    found = compare_with_earlier(
        layers(9, slow, noise=0.003, seed=9), [layers(day, noise=0.003, seed=day) for day in range(1, 8)]
    )
    assert not [name for name in named(found) if "layer layer10" in name or "layer layer11" in name]


def test_noise_of_8_percent_in_layer_times_is_not_reported() -> None:
    history = [layers(day, noise=0.08, seed=day) for day in range(1, 8)]
    assert compare_with_earlier(layers(9, noise=0.08, seed=9), history).fine


# -- single numbers ---------------------------------------------------------------------------------


def test_a_number_needs_five_earlier_runs_to_be_compared() -> None:
    history = [nightly_run(day, done("fig5", measured(1.0))) for day in range(1, 5)]
    current = nightly_run(20, done("fig5", measured(2.0)))
    early = compare_with_earlier(current, history)
    assert early.fine and (early.judged, early.young) == (0, 1)
    late = compare_with_earlier(current, [*history, nightly_run(5, done("fig5", measured(1.0)))])
    (number,) = late.moved
    assert (number.usual, number.value, number.change, number.nights) == (1.0, 2.0, 1.0, 5)


def test_a_number_that_grew_from_below_zero_has_a_plus() -> None:
    history = [nightly_run(day, done("fig5", measured(-5.0, unit="%"))) for day in range(1, 6)]
    (number,) = compare_with_earlier(nightly_run(20, done("fig5", measured(5.0, unit="%"))), history).moved
    assert number.change == 2.0


@pytest.mark.parametrize(("value", "changed"), [(1.08, False), (1.2, True)])
def test_a_number_that_never_varied_may_vary_by_the_floor(value: float, changed: bool) -> None:
    history = [nightly_run(day, done("fig5", measured(1.0))) for day in range(1, 8)]
    assert bool(compare_with_earlier(nightly_run(20, done("fig5", measured(value))), history).moved) is changed


def test_one_outlier_neither_widens_the_band_nor_shifts_the_median() -> None:
    values = [1.0, 1.01, 5.0, 0.99, 1.0, 1.01, 1.0]
    history = [nightly_run(day, done("fig5", measured(value))) for day, value in enumerate(values, start=1)]
    assert compare_with_earlier(nightly_run(20, done("fig5", measured(1.3))), history).moved
    assert compare_with_earlier(nightly_run(20, done("fig5", measured(1.02))), history).fine


def test_a_wide_spread_within_the_runs_is_noise() -> None:
    history = [nightly_run(day, done("fig5", measured(1.0, spread=0.2))) for day in range(1, 8)]
    assert compare_with_earlier(nightly_run(20, done("fig5", measured(1.35, spread=0.2))), history).fine
    assert compare_with_earlier(nightly_run(20, done("fig5", measured(1.45, spread=0.2))), history).moved


def test_a_percentage_near_zero_has_half_a_point_of_noise_at_least() -> None:
    history = [nightly_run(day, done("fig5", measured(0.1, unit="%"))) for day in range(1, 8)]
    assert compare_with_earlier(nightly_run(20, done("fig5", measured(2.0, unit="%"))), history).fine
    assert compare_with_earlier(nightly_run(20, done("fig5", measured(4.0, unit="%"))), history).moved


def test_any_change_of_a_constant_simulated_number_is_reported() -> None:
    history = [nightly_run(day, done("fig5", simulated(1.5))) for day in (1, 2)]
    assert compare_with_earlier(nightly_run(3, done("fig5", simulated(1.5))), history).fine
    (number,) = compare_with_earlier(nightly_run(3, done("fig5", simulated(1.5001))), history).moved
    assert number.basis == "simulated"


def test_a_simulated_number_that_varies_between_runs_has_noise() -> None:
    values = (1.5, 1.52, 1.49, 1.51, 1.5, 1.53)
    history = [nightly_run(day, done("fig5", simulated(value))) for day, value in enumerate(values, start=1)]
    assert compare_with_earlier(nightly_run(20, done("fig5", simulated(1.505))), history).fine


# -- which runs are compared ------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"preset": "full"}, {"device": "another processor"}])
def test_runs_of_another_preset_or_device_are_not_compared(other: dict) -> None:
    history = [nightly_run(day, done("fig5", simulated(1.5)), **other) for day in range(1, 8)]
    found = compare_with_earlier(nightly_run(20, done("fig5", simulated(9.0))), history)
    assert found.fine and found.compared == ()
    assert "the first of its kind" in str(found)
    assert "; 1 notebook, " in str(found)


def test_a_notebook_that_ran_with_other_parameters_is_not_compared() -> None:
    history = [nightly_run(day, done("fig5", simulated(1.5), parameters={"gpus": 8})) for day in range(1, 8)]
    assert compare_with_earlier(nightly_run(20, done("fig5", simulated(9.0), parameters={"gpus": 64})), history).fine


def test_only_the_newest_fourteen_runs_are_compared() -> None:
    history = [nightly_run(day, done("fig5", simulated(1.0 if day < 15 else 2.0))) for day in range(1, 29)]
    random.Random(0).shuffle(history)
    found = compare_with_earlier(nightly_run(30, done("fig5", simulated(2.0))), history)
    assert found.fine
    assert found.compared == tuple(f"2026-11-{day:02d}" for day in range(15, 29))


# -- failures ---------------------------------------------------------------------------------------


def test_a_failed_notebook_is_reported_with_the_run_since_which_it_fails() -> None:
    history = [nightly_run(1, failed()), nightly_run(2, done()), nightly_run(3, failed()), nightly_run(4, failed())]
    (broken,) = compare_with_earlier(nightly_run(5, failed("cell 4: bang")), history).broken
    assert (broken.notebook, broken.problem, broken.since) == ("fig5", "cell 4: bang", "2026-11-03")
    (new,) = compare_with_earlier(nightly_run(5, failed()), history[:2]).broken
    assert new.since == "2026-11-05"


def test_a_check_that_does_not_hold_is_reported_with_the_run_in_which_it_last_did() -> None:
    def checked(day: int, holds: bool) -> NightlyRun:
        return nightly_run(day, done(checks=(Check("VGG-16 gains", holds, "0.98x"), Check("another", True))))

    found = compare_with_earlier(checked(4, False), [checked(1, True), checked(2, True), checked(3, False)])
    (unmet,) = found.unmet
    assert (unmet.statement, unmet.detail, unmet.held) == ("VGG-16 gains", "0.98x", "2026-11-02")
    assert not found.fine
    assert "1 of 2 checks do not hold" in str(found)
    assert compare_with_earlier(checked(4, False), []).unmet[0].held is None


def test_an_expected_failure_is_reported_and_fails_no_run_unless_it_passed_once() -> None:
    check = Check("short kernels suffer", False, "91 %", known="an operating system interrupts")
    found = compare_with_earlier(nightly_run(2, done(checks=(check, Check("another", True)))), [])
    assert found.fine and not found.unmet
    (known,) = found.known
    assert (known.statement, known.detail) == ("short kernels suffer", "91 %; an operating system interrupts")
    assert "nothing failed, 1 of 2 checks do not hold, as expected" in str(found)
    assert "short kernels suffer" in found.explain()
    # The expectation covers this check only, and only while it does not hold.
    assert not compare_with_earlier(nightly_run(2, done(checks=(check, Check("another", False)))), []).fine
    held = nightly_run(1, done(checks=(replace(check, holds=True),)))
    assert compare_with_earlier(held, []).known == ()
    # If it passed once, later failures count.
    after = compare_with_earlier(nightly_run(2, done(checks=(check,))), [held])
    assert not after.fine and not after.known
    assert after.unmet[0].held == held.name
    # Where it could not fail, it did not pass.
    idle = nightly_run(1, done(checks=(replace(check, holds=True, inapplicable="nothing runs beside"),)))
    assert compare_with_earlier(nightly_run(2, done(checks=(check,))), [idle]).fine


def test_a_notebook_that_did_not_run_and_a_missing_number_are_reported() -> None:
    late = done("fig9", state="not run", problem="the budget of 60 s was spent")
    found = compare_with_earlier(
        nightly_run(2, done("fig5"), late), [nightly_run(1, done("fig5", measured(1.0)), done("fig9", measured(1.0)))]
    )
    assert found.not_run == ("fig9: the budget of 60 s was spent",)
    assert found.gone == ("fig5: search time",)
    assert not found.fine


def test_changed_versions_are_reported() -> None:
    found = compare_with_earlier(nightly_run(2, versions={"torch": "2.14.0"}), [nightly_run(1)])
    assert found.versions == ("torch 2.13.0 → 2.14.0",)
    assert found.fine


def test_a_report_and_a_run_are_read_back_from_their_files(tmp_path) -> None:
    current = layers(2, {7: 1.5})
    found = compare_with_earlier(current, [layers(1)])
    assert found.moved
    for record in (current, found):
        assert serialization.read(serialization.write(record, tmp_path / "x.json"), type(record)) == record
