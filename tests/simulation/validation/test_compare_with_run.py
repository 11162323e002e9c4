"""Comparison of a simulation with the record of a live run, made up so that every number is known."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

from deeppool.base.sharing import POLICIES
from deeppool.base.timeline import Span
from deeppool.errors import InvalidValueError
from deeppool.records import files
from deeppool.records.run_record import BackgroundResult, Phase, TimeSummary
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.simulation.plan.collocated_plan import simulate_collocated_plan
from deeppool.simulation.plan.conditions import Conditions
from deeppool.simulation.plan.simulate import simulate
from deeppool.simulation.validation.compare_with_run import compare_with_run
from tests.figures.records import layer, plan_of, run_of
from tests.strategies import make_graph, profile_from_times, waiting

PLAN = plan_of(
    layer("conv", 2, forward=0.10, backward=0.20), layer("fc", 1, forward=0.05, backward=0.05, reshard=0.10), gpus=2
)
"""0.5 s, of which GPU 1 is idle for 0.2."""
UPDATE = 0.1
BACKGROUND = replace(profile_from_times(make_graph([()]), [lambda b: 0.01], (4,)), device_name=PLAN.device_name)


def summary(seconds):
    return TimeSummary(seconds, seconds, seconds, 20)


def run(alone=0.6, beside=0.6, harvest=0.25, idle=(0.0, 0.3)):
    """A run whose update takes 0.1 s on GPU 0 and none on GPU 1."""
    made = replace(run_of(), ranks=2, plan_iteration_time=PLAN.iteration_time, sharing=POLICIES["naive"])
    update = Span(0, "update", "update", 0.5, 0.5 + UPDATE)
    front = replace(
        made.foreground, iteration_time=summary(beside), alone=Phase(summary(alone), 100.0, idle), idle_share=idle
    )
    back = BackgroundResult("mobilenet_v2", 4, "SCHED_IDLE", 30.0, 100.0, harvest, 0.9, 6.9, 6.8, "stopped")
    timeline = replace(made.timeline, gpus=2, spans=(*made.timeline.spans, update))
    return replace(made, foreground=front, background=back, timeline=timeline)


def by_name(found):
    return {quantity.name.split(",")[0]: quantity for quantity in found.quantities}


def test_a_run_that_went_as_simulated_has_no_error():
    found = compare_with_run(PLAN, run(idle=(0.0, 0.5)))
    # GPU 1 is idle for 0.2 s and during the update of GPU 0, of 0.6 s.
    assert by_name(found)["iteration alone"].error == pytest.approx(0)
    assert by_name(found)["beside the background"].error == pytest.approx(0)
    assert by_name(found)["idle time alone"].simulated == pytest.approx(0.25)
    assert str(by_name(found)["idle time alone"]).startswith("idle time alone 25.0 % for ")
    assert by_name(found)["background harvest"].error == pytest.approx(0)
    assert found.update_time == pytest.approx(UPDATE)
    assert found.within(0.15)


def test_errors_are_parts_of_what_was_measured_and_the_worst_is_named():
    found = compare_with_run(PLAN, run(alone=1.1, beside=1.35, harvest=0.2, idle=(0.1, 0.4)))
    errors = {name: quantity.error for name, quantity in by_name(found).items()}
    assert errors["iteration alone"] == pytest.approx(-0.5)
    assert errors["beside the background"] == pytest.approx(-0.6)
    assert errors["background harvest"] == pytest.approx(0.25)
    assert found.worst.name == "beside the background"
    assert not found.within(0.15)
    assert "beside the background 500 ms for 1.25 s (-60.0 %)" in str(found)
    assert "no interference modelled" in str(found)


def test_beside_nothing_measured_there_is_no_part_of_it():
    found = compare_with_run(PLAN, run(harvest=0.0))
    assert "background harvest 25.0 % for 0.0 %;" in str(found)
    assert not found.within(1e9)


def test_with_interference_it_agrees_with_the_collocated_plan():
    pairs = tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs)
    found = by_name(compare_with_run(PLAN, run(), background=BACKGROUND, interference=measured))
    priced = simulate_collocated_plan(PLAN, BACKGROUND, measured, POLICIES["naive"], iterations=20)
    assert priced.slowdown > 0.1
    assert found["beside the background"].simulated == pytest.approx(0.5 * (1 + priced.slowdown))
    # The background has the update's time on GPU 1, and goes at 0.4 beside what GPU 0 computes for 0.5 / 0.8 s.
    assert found["background harvest"].simulated > 0.25
    beside = replace(run().background, batch=BACKGROUND.batch_sizes[-1] + 1)
    with pytest.raises(InvalidValueError, match=r"had batches of \d+, its profile ends at \d+ \(profile it with"):
        compare_with_run(PLAN, replace(run(), background=beside), background=BACKGROUND, interference=measured)
    with pytest.raises(InvalidValueError, match="the profile of the background mobilenet_v2 is needed"):
        compare_with_run(PLAN, run(), interference=measured)


def test_a_profile_of_another_background_is_named():
    pairs = tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs)
    found = compare_with_run(PLAN, run(), background=BACKGROUND, interference=measured)
    assert str(found).endswith(
        "interference as on a device, 2026-11-21, with the profile of drawn for the run's background mobilenet_v2"
    )
    same = replace(run(), background=replace(run().background, model="drawn"))
    found = compare_with_run(PLAN, same, background=BACKGROUND, interference=measured)
    assert str(found).endswith("; interference as on a device, 2026-11-21")
    with pytest.raises(InvalidValueError, match="the background's profile of another processor"):
        other = replace(BACKGROUND, device_name="another processor")
        compare_with_run(PLAN, run(), background=other, interference=measured)


def test_a_plan_that_predicts_the_update_is_compared_with_it():
    """The plan: 0.5 s, then 0.1 s of updates on GPU 0, 0.04 s of which are of the layer that GPU 1 has too."""
    conv, fc = PLAN.layers
    plan = replace(PLAN, layers=(replace(conv, update=0.04), replace(fc, update=0.06)), iteration_time=0.6)
    found = compare_with_run(plan, replace(run(alone=0.6), plan_iteration_time=0.6, background=None))
    assert by_name(found)["iteration alone"].simulated == pytest.approx(0.6)
    assert by_name(found)["iteration alone"].measured == 0.6
    assert by_name(found)["idle time alone"].simulated == pytest.approx((0.2 + 0.06) / 2 / 0.6)
    assert found.update_time == 0


def test_a_run_without_background_is_compared_alone():
    found = compare_with_run(PLAN, replace(run(), background=None))
    assert set(by_name(found)) == {"iteration alone", "idle time alone"}
    assert found.background is None


def test_of_an_emulated_run_the_one_rank_counts():
    made = replace(run(alone=0.5, beside=0.5, harvest=0.4), emulated_rank=1)
    front = replace(made.foreground, alone=replace(made.foreground.alone, idle_share=(0.4,)))
    found = compare_with_run(PLAN, replace(made, foreground=front))
    assert [quantity.error for quantity in found.quantities] == pytest.approx([0, 0, 0, 0])


def test_gpus_that_differ_wait_for_each_other():
    """Two GPUs compute 1 s and then synchronise: the mean wait is half of the mean distance of their ends."""
    plan = plan_of(layer("conv", 2, forward=0.4, backward=0.6, sync=0.25), gpus=2)
    made = replace(run(alone=1.3, beside=1.3), plan_iteration_time=plan.iteration_time)
    jitter = 0.1
    found = by_name(compare_with_run(plan, made, conditions=Conditions(jitter=jitter, seed=1), iterations=4000))
    # Means of the log-normal itself, of the longer and the shorter of two.
    mean = math.exp(jitter**2 / 2)
    longer = 2 * mean * NormalDist().cdf(jitter / math.sqrt(2))
    whole = longer + 0.25 + UPDATE
    idle = (2 * whole - 2 * mean - 2 * 0.25 - UPDATE) / 2 / whole
    assert found["idle time alone"].simulated == pytest.approx(idle, rel=0.03)
    assert found["background harvest"].simulated == pytest.approx(idle, rel=0.03)
    assert found["iteration alone"].simulated == pytest.approx(1.25 + jitter / math.sqrt(math.pi), rel=0.02)


def test_one_slow_gpu_is_simulated_as_without_a_run():
    slow = Conditions(speeds=(0.5, 1.0))
    found = compare_with_run(PLAN, replace(run(), background=None), conditions=slow)
    simulated = simulate(PLAN, conditions=slow)
    assert by_name(found)["iteration alone"].simulated == pytest.approx(simulated.iteration_time)
    idle = (simulated.idle_gpu_seconds + UPDATE) / 2 / (simulated.iteration_time + UPDATE)
    assert by_name(found)["idle time alone"].simulated == pytest.approx(idle)
    assert str(slow) in str(found)


def harvest(plan, waits, *, priority="lowest", **how):
    """Returns the simulated harvest of a run of a plan with a background that nothing slows down."""
    pairs = tuple(Arrangement(name, ((1.0,),), ((0.0,),)) for name in ("normal", "lowest"))
    measured = Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs, waits)
    sharing = replace(POLICIES["priority"], priority=priority)
    of = replace(run(), plan_iteration_time=plan.iteration_time, sharing=sharing)
    found = compare_with_run(plan, of, background=BACKGROUND, interference=measured, **how)
    return by_name(found)["background harvest"].simulated


def test_a_background_harvests_the_part_of_a_wait_measured_for_its_length():
    """1 ms between two layers of one GPU while the other one computes, and 200 ms."""
    short = plan_of(
        layer("conv", 2, forward=0.10, backward=0.20), layer("fc", 1, forward=0.0005, backward=0.0005), gpus=2
    )
    waits = IdleHarvest((1e-3, 0.1, 0.2), (0.25, 0.5, 0.75))
    for plan, length, lost in ((short, 0.001, 0.75), (PLAN, 0.2, 0.25)):
        whole = plan.iteration_time + UPDATE
        assert harvest(plan, None) - harvest(plan, waits) == pytest.approx(lost * length / 2 / whole)
        assert harvest(plan, waits, priority="normal") == pytest.approx(harvest(plan, None, priority="normal"))


def test_waits_inside_transfers_give_what_was_measured_in_transfers():
    plan = waiting(plan_of(layer("conv", 2, forward=0.4, backward=0.6, sync=0.5), gpus=2), all_reduce=0.6)
    waits = IdleHarvest((1e-3,), (1.0,), in_transfers=0.3)
    of_all, of_a_part = harvest(plan, None), harvest(plan, waits)
    assert of_all - of_a_part == pytest.approx(0.7 * 0.4 * 0.5 / (plan.iteration_time + UPDATE))


def test_waits_are_as_long_as_they_are_in_each_iteration():
    """One GPU waits for the other one 0 s as planned, and with noise for longer than what counts as short here."""
    plan = plan_of(layer("conv", 2, forward=0.4, backward=0.6, sync=0.25), gpus=2)
    none_below, noise = IdleHarvest((0.09, 0.11), (0.0, 1.0)), Conditions(jitter=0.1, seed=1)
    everything, only_long = (harvest(plan, waits, conditions=noise) for waits in (None, none_below))
    assert 0.1 * everything < only_long < 0.95 * everything


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "its model is other, this plan's is tiny"),
        ({"ranks": 8}, "its ranks is 8"),
        ({"global_batch": 1}, "its global batch is 1"),
        ({"plan_iteration_time": 0.7}, "one of 0.7 s an iteration, this one's is 0.5 s"),
    ],
)
def test_a_run_of_another_plan_is_refused(change, message):
    with pytest.raises(InvalidValueError, match=message):
        compare_with_run(PLAN, replace(run(), **change))


def test_it_is_kept_with_the_simulation(tmp_path):
    found = replace(simulate(PLAN), fidelity=compare_with_run(PLAN, run()))
    assert files.load(files.save(found, tmp_path / "simulation.json")) == found
    assert str(found).splitlines()[1] == str(found.fidelity)
    assert files.load(files.save(found.fidelity, tmp_path / "fidelity.json")) == found.fidelity
