"""A background beside every GPU of a plan."""

from dataclasses import replace

import pytest

from deeppool.base.sharing import POLICIES, Sharing
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.planner import plan
from deeppool.records import files
from deeppool.simulation.device.idle_harvest import IdleHarvest
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.simulation.plan.collocated_plan import simulate_collocated_plan
from deeppool.simulation.plan.simulate import simulate
from tests.strategies import make_graph, profile_from_times, waiting

BATCH = 16


def made(gpus=2, first=lambda b: 0.5e-3 * b):
    """A layer that scales by default, and one that does not and runs on one GPU."""
    profile = profile_from_times(make_graph([(), (0,)]), [first, lambda b: 8e-3])
    cluster = Cluster(gpus, inside=Link(1e12, 1e-4, "made by hand"))
    return plan(profile, cluster, BATCH, amplification_limit=1.5), profile


def same_for_all(foreground, background):
    arrangements = tuple(Arrangement(name, ((foreground,),), ((background,),)) for name in ("normal", "nice", "lowest"))
    return Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), arrangements)


@pytest.mark.parametrize("network", [lambda made: made, waiting, lambda made: waiting(made, 0.0, 0.0)])
def test_a_background_that_is_preempted_gets_what_the_replay_gives_it(network):
    foreground, background = made()
    foreground = network(foreground)
    found = simulate_collocated_plan(foreground, background, same_for_all(1.0, 0.0), Sharing(), iterations=20)
    replayed = simulate(foreground, background_sample_time=found.background_sample_time)
    assert found.slowdown == pytest.approx(0, abs=1e-9)
    assert [one.alone_time for one in found.gpus] == pytest.approx([foreground.iteration_time] * 2)
    in_an_iteration = found.background_throughput * foreground.iteration_time
    assert in_an_iteration == pytest.approx(replayed.background_samples)
    assert replayed.background_samples > 0


def test_a_background_is_simulated_on_gpus_with_room_for_it():
    """Both layers keep 1 MB a sample: 24 MB on GPU 0, and 8 MB on GPU 1, which the second layer leaves idle."""
    graph = make_graph([(), (0,)], parameter_bytes=[0, 0], activation_bytes=[10**6, 10**6])
    profile = profile_from_times(graph, [lambda b: 0.5e-3 * b, lambda b: 8e-3])
    link = Link(1e12, 1e-4, "made by hand")

    def beside(memory, **options):
        foreground = plan(profile, Cluster(2, "by hand", 2, link, link, memory), BATCH, amplification_limit=1.5)
        arguments = foreground, profile, same_for_all(1.0, 0.0), Sharing()
        return simulate_collocated_plan(*arguments, iterations=20, **options)

    everywhere, one = beside(100e6), beside(45e6)
    assert (everywhere.without_room, one.without_room) == ((), (0,))
    # GPU 0 is never idle: the background of 32 MB trains no less beside a plan that leaves it GPU 1 alone.
    assert everywhere.background_throughput == pytest.approx(one.background_throughput, rel=1e-6)
    assert one.gpus == everywhere.gpus[1:]
    assert "; none on GPU 0, without room for it" in str(one)
    with pytest.raises(
        PlanError, match=r"no GPU of the plan has room for drawn at batch 16 beside drawn: it needs 30.5"
    ):
        beside(39e6)
    assert beside(39e6, background_batch=8).without_room == (0,)


def test_a_background_trains_with_its_updates():
    foreground, background = made()
    graph = replace(make_graph([(), (0,)], parameter_bytes=[200, 0]), model=background.graph.model)
    updated = replace(background, graph=graph, update_per_byte=1e-5)
    shared = [
        simulate_collocated_plan(foreground, job, same_for_all(1.0, 0.0), Sharing(), iterations=20)
        for job in (background, updated)
    ]
    # A step of 16 samples takes 16 ms, and the update 2 ms: the same time idle trains 16 steps in place of 18.
    assert shared[1].background_sample_time == pytest.approx(18e-3 / 16)
    assert shared[1].background_throughput == pytest.approx(shared[0].background_throughput * 16 / 18, rel=1e-6)


def test_a_background_gets_less_of_short_waits_and_inside_transfers():
    foreground = waiting(made()[0])
    background = made()[1]
    whole = simulate_collocated_plan(foreground, background, same_for_all(1.0, 0.0), Sharing(), iterations=20)
    # Beside these, rounding leaves "gaps" of no length between what lies end to end.
    waits = IdleHarvest((1e-4, 1e-3, 1.0), (0.0, 0.4, 0.4), in_transfers=0.4)
    short = replace(same_for_all(1.0, 0.0), waits=waits)
    part = simulate_collocated_plan(foreground, background, short, Sharing(), iterations=20)
    assert [one.harvest for one in part.gpus] == pytest.approx([0.4 * one.harvest for one in whole.gpus], rel=1e-6)
    assert [one.iteration_time for one in part.gpus] == pytest.approx([one.iteration_time for one in whole.gpus])
    # A background of equal priority is not sent away.
    naive = [
        simulate_collocated_plan(foreground, background, one, POLICIES["naive"], iterations=20).background_throughput
        for one in (same_for_all(1.0, 0.0), short)
    ]
    assert naive[0] == naive[1]


def test_a_share_of_the_device_is_refused_as_interference_is_of_priorities():
    foreground, background = made()
    with pytest.raises(InvalidValueError, match=r"not of a share of 0.2 \(leave share out, or run it\)"):
        simulate_collocated_plan(foreground, background, same_for_all(0.5, 0.5), Sharing(share=0.2))


def test_the_most_slowed_gpu_delays_the_plan():
    foreground, background = made()
    found = simulate_collocated_plan(foreground, background, same_for_all(0.5, 0.5), POLICIES["naive"], iterations=20)
    busy = [1 - one.idle_share for one in found.gpus]
    # Each operator takes twice as long.
    assert [one.slowdown for one in found.gpus] == pytest.approx(busy)
    assert found.slowdown == max(one.slowdown for one in found.gpus)
    assert "slowdown" in str(found) and "a device" in str(found)


def test_it_comes_back_from_a_file(tmp_path):
    foreground, background = made()
    found = simulate_collocated_plan(
        foreground, background, same_for_all(0.9, 0.5), POLICIES["feedback"], iterations=20
    )
    assert files.load(files.save(found, tmp_path / "priced.json")) == found


def test_gpus_that_the_plan_never_uses_are_left_out():
    foreground, background = made(gpus=4, first=lambda b: 8e-3)
    found = simulate_collocated_plan(foreground, background, same_for_all(1.0, 0.0), Sharing(), iterations=5)
    assert {gpu for layer in foreground.layers for gpu in layer.gpus} == {0}
    assert len(found.gpus) == 1
