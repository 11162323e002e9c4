"""A night against the nights before: what moved is named, what only varied is not."""

import random
from dataclasses import replace

import pytest

from deeppool.base import serialization
from deeppool.evaluation.nightly_record import NightlyRun, Observation, Outcome
from deeppool.evaluation.observations import of_profile
from deeppool.evaluation.record import Check
from deeppool.evaluation.regression_report import RegressionReport, compare_with_earlier
from deeppool.profiling.table import Profile
from tests.strategies import make_graph, profile_from_times

LAYERS = 12


def night(day: int, *outcomes: Outcome, **fields) -> NightlyRun:
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


def done(name: str = "fig5", *observations: Observation, checks: tuple[Check, ...] = (), **fields) -> Outcome:
    whole = Outcome(name, name, "done", "", True, {}, 10.0, "", "", observations, checks)
    return replace(whole, **fields)


def failed(problem: str = "cell 3: boom", name: str = "fig5") -> Outcome:
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
    return night(day, done("fig5", *of_profile(profile(*arguments, **keywords), "profile")))


def named(found: RegressionReport) -> list[str]:
    return [move.name for move in found.moved]


# -- layers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nights", [1, 2, 6, 14])
def test_a_layer_that_got_20_percent_slower_is_named_and_no_other(nights: int) -> None:
    history = [layers(day, noise=0.01, seed=day) for day in range(1, nights + 1)]
    found = compare_with_earlier(layers(20, {7: 1.2}, noise=0.01, seed=99), history)
    slow = [move for move in found.moved if "layer" in move.name and "all layers" not in move.name]
    assert {move.name.split(": ")[2] for move in slow} == {
        *(f"layer layer7 at batch {batch}" for batch in (1, 2, 4)),
        "layer layer7, mean over batches",
    }
    assert all(0.15 < move.change < 0.25 for move in slow)
    assert "layer layer7 at batch 1" in found.explain()
    assert not found.fine


@pytest.mark.parametrize(("noise", "nights", "least"), [(0.02, 1, 90), (0.03, 1, 55), (0.03, 7, 95), (0.05, 7, 50)])
def test_how_surely_a_layer_that_got_20_percent_slower_is_named(noise: float, nights: int, least: int) -> None:
    found = [
        compare_with_earlier(
            layers(20, {7: 1.2}, noise=noise, seed=seed),
            [layers(day, noise=noise, seed=1000 * day + seed) for day in range(1, nights + 1)],
        )
        for seed in range(100)
    ]
    assert sum(any("layer layer7" in name for name in named(each)) for each in found) >= least
    assert sum(any("layer layer7" not in name for name in named(each)) for each in found) <= 2


def test_a_layer_that_got_faster_is_named_too() -> None:
    found = compare_with_earlier(layers(2, {3: 0.8}), [layers(1)])
    assert all("layer layer3" in name for name in named(found))
    assert len(found.moved) == 4


def test_two_identical_nights_raise_nothing() -> None:
    found = compare_with_earlier(layers(2), [layers(1)])
    assert found.fine and found.judged == 4 * LAYERS
    assert "nothing moved, nothing broke" in str(found)


def test_a_machine_that_is_slow_tonight_names_its_sum_and_not_every_layer() -> None:
    history = [layers(day, noise=0.01, seed=day) for day in range(1, 8)]
    found = compare_with_earlier(layers(9, noise=0.01, seed=9, machine=1.3), history)
    assert named(found) and all("all layers at batch" in name for name in named(found))


def test_where_most_layers_got_slower_the_others_are_not_called_fast() -> None:
    slow = dict.fromkeys(range(9), 1.3)
    found = compare_with_earlier(
        layers(9, slow, noise=0.003, seed=9), [layers(day, noise=0.003, seed=day) for day in range(1, 8)]
    )
    assert not [name for name in named(found) if "layer layer10" in name or "layer layer11" in name]


def test_a_slow_layer_on_a_noisy_night_is_not_told_from_noise() -> None:
    history = [layers(day, noise=0.08, seed=day) for day in range(1, 8)]
    assert compare_with_earlier(layers(9, noise=0.08, seed=9), history).fine


# -- numbers alone ----------------------------------------------------------------------------------


def test_a_number_needs_five_nights_before_it_is_judged() -> None:
    history = [night(day, done("fig5", measured(1.0))) for day in range(1, 5)]
    tonight = night(20, done("fig5", measured(2.0)))
    early = compare_with_earlier(tonight, history)
    assert early.fine and (early.judged, early.young) == (0, 1)
    late = compare_with_earlier(tonight, [*history, night(5, done("fig5", measured(1.0)))])
    (move,) = late.moved
    assert (move.usual, move.value, move.change, move.nights) == (1.0, 2.0, 1.0, 5)


@pytest.mark.parametrize(("value", "moved"), [(1.08, False), (1.2, True)])
def test_a_number_that_never_varied_may_vary_by_the_floor(value: float, moved: bool) -> None:
    history = [night(day, done("fig5", measured(1.0))) for day in range(1, 8)]
    assert bool(compare_with_earlier(night(20, done("fig5", measured(value))), history).moved) is moved


def test_one_bad_night_neither_widens_the_band_nor_moves_the_middle() -> None:
    values = [1.0, 1.01, 5.0, 0.99, 1.0, 1.01, 1.0]
    history = [night(day, done("fig5", measured(value))) for day, value in enumerate(values, start=1)]
    assert compare_with_earlier(night(20, done("fig5", measured(1.3))), history).moved
    assert compare_with_earlier(night(20, done("fig5", measured(1.02))), history).fine


def test_a_wide_spread_within_the_nights_is_noise() -> None:
    history = [night(day, done("fig5", measured(1.0, spread=0.2))) for day in range(1, 8)]
    assert compare_with_earlier(night(20, done("fig5", measured(1.35, spread=0.2))), history).fine
    assert compare_with_earlier(night(20, done("fig5", measured(1.45, spread=0.2))), history).moved


def test_a_percentage_near_zero_has_half_a_point_of_noise_at_least() -> None:
    history = [night(day, done("fig5", measured(0.1, unit="%"))) for day in range(1, 8)]
    assert compare_with_earlier(night(20, done("fig5", measured(2.0, unit="%"))), history).fine
    assert compare_with_earlier(night(20, done("fig5", measured(4.0, unit="%"))), history).moved


def test_a_simulated_number_that_never_changed_moves_by_any_change() -> None:
    history = [night(day, done("fig5", simulated(1.5))) for day in (1, 2)]
    assert compare_with_earlier(night(3, done("fig5", simulated(1.5))), history).fine
    (move,) = compare_with_earlier(night(3, done("fig5", simulated(1.5001))), history).moved
    assert move.basis == "simulated"


def test_a_simulated_number_that_varies_with_the_night_has_noise() -> None:
    values = (1.5, 1.52, 1.49, 1.51, 1.5, 1.53)
    history = [night(day, done("fig5", simulated(value))) for day, value in enumerate(values, start=1)]
    assert compare_with_earlier(night(20, done("fig5", simulated(1.505))), history).fine


# -- which nights count -----------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"preset": "full"}, {"device": "another processor"}])
def test_nights_of_another_preset_or_device_do_not_count(other: dict) -> None:
    history = [night(day, done("fig5", simulated(1.5)), **other) for day in range(1, 8)]
    found = compare_with_earlier(night(20, done("fig5", simulated(9.0))), history)
    assert found.fine and found.compared == ()
    assert "the first of its kind" in str(found)


def test_a_notebook_that_ran_with_other_parameters_is_not_compared() -> None:
    history = [night(day, done("fig5", simulated(1.5), parameters={"gpus": 8})) for day in range(1, 8)]
    assert compare_with_earlier(night(20, done("fig5", simulated(9.0), parameters={"gpus": 64})), history).fine


def test_only_the_latest_fourteen_nights_count() -> None:
    history = [night(day, done("fig5", simulated(1.0 if day < 15 else 2.0))) for day in range(1, 29)]
    random.Random(0).shuffle(history)
    found = compare_with_earlier(night(30, done("fig5", simulated(2.0))), history)
    assert found.fine
    assert found.compared == tuple(f"2026-11-{day:02d}" for day in range(15, 29))


# -- what broke -------------------------------------------------------------------------------------


def test_a_broken_notebook_is_named_with_the_night_since_when() -> None:
    history = [night(1, failed()), night(2, done()), night(3, failed()), night(4, failed())]
    (broken,) = compare_with_earlier(night(5, failed("cell 4: bang")), history).broken
    assert (broken.notebook, broken.problem, broken.since) == ("fig5", "cell 4: bang", "2026-11-03")
    (new,) = compare_with_earlier(night(5, failed()), history[:2]).broken
    assert new.since == "2026-11-05"


def test_a_check_that_does_not_hold_says_when_it_last_did() -> None:
    def checked(day: int, holds: bool) -> NightlyRun:
        return night(day, done(checks=(Check("VGG-16 gains", holds, "0.98x"), Check("another", True))))

    found = compare_with_earlier(checked(4, False), [checked(1, True), checked(2, True), checked(3, False)])
    (unmet,) = found.unmet
    assert (unmet.statement, unmet.detail, unmet.held) == ("VGG-16 gains", "0.98x", "2026-11-02")
    assert not found.fine
    assert "1 of 2 checks do not hold" in str(found)
    assert compare_with_earlier(checked(4, False), []).unmet[0].held is None


def test_a_difference_that_is_known_is_told_and_fails_no_night() -> None:
    check = Check("short kernels suffer", False, "91 %", known="an operating system interrupts")
    found = compare_with_earlier(night(2, done(checks=(check, Check("another", True)))), [])
    assert found.fine and not found.unmet
    (known,) = found.known
    assert (known.statement, known.detail) == ("short kernels suffer", "91 %; an operating system interrupts")
    assert "nothing broke, 1 of 2 checks do not hold, as is known" in str(found)
    assert "short kernels suffer" in found.explain()
    # It is known of this one only, and only while it does not hold.
    assert not compare_with_earlier(night(2, done(checks=(check, Check("another", False)))), []).fine
    held = night(1, done(checks=(replace(check, holds=True),)))
    assert compare_with_earlier(held, []).known == ()
    # And only where it never held.
    after = compare_with_earlier(night(2, done(checks=(check,))), [held])
    assert not after.fine and not after.known
    assert after.unmet[0].held == held.name


def test_a_notebook_that_did_not_run_is_told_and_a_number_that_is_gone_too() -> None:
    late = done("fig9", state="not run", problem="the budget of 60 s was spent")
    found = compare_with_earlier(
        night(2, done("fig5"), late), [night(1, done("fig5", measured(1.0)), done("fig9", measured(1.0)))]
    )
    assert found.not_run == ("fig9: the budget of 60 s was spent",)
    assert found.gone == ("fig5: search time",)
    assert not found.fine


def test_versions_that_changed_are_told() -> None:
    found = compare_with_earlier(night(2, versions={"torch": "2.14.0"}), [night(1)])
    assert found.versions == ("torch 2.13.0 → 2.14.0",)
    assert found.fine


def test_a_verdict_and_a_night_come_back_from_their_files(tmp_path) -> None:
    tonight = layers(2, {7: 1.5})
    found = compare_with_earlier(tonight, [layers(1)])
    assert found.moved
    for record in (tonight, found):
        assert serialization.read(serialization.write(record, tmp_path / "x.json"), type(record)) == record
