"""A replayed plan: every GPU does what it would if each were simulated by itself, in whole iterations."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base.timeline import Span
from deeppool.errors import InvalidValueError
from deeppool.planning.evaluate.schedule import exposed_syncs, order_of, schedule
from deeppool.simulation.plan.simulate import replay, simulate
from tests.figures.records import layer, plan_of
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import problems, tied_problems, waiting

few = examples(60)


@pytest.mark.parametrize("seconds", [0, -1e-3, float("inf"), float("nan")])
def test_a_background_whose_samples_take_no_time_or_forever_is_refused(seconds):
    with pytest.raises(InvalidValueError, match=f"background_sample_time must be positive and finite, got {seconds:g}"):
        simulate(plan_of(layer("a", 1, forward=1.0)), background_sample_time=seconds)


def one_by_one(made):
    """Returns the spans of the schedule, derived for each GPU separately."""
    times = schedule(order_of(made.tree, made.gpu_sets), made.gpu_sets, made.layers, overlap_sync=made.overlap_sync)
    spans = []
    for gpu in range(made.gpus):
        own = [index for index, x in enumerate(made.layers) if gpu in x.gpus]
        held = [
            Span(gpu, "sync", made.layers[x.layer].name, x.start, x.end) for x in exposed_syncs(times, made.layers, own)
        ]
        for index in own:
            x, start, back = made.layers[index], times.inputs[index], times.backward[index]
            end = times.gradients[index] + x.reshard / 2
            held += [
                Span(gpu, "reshard", x.name, start, start + x.reshard / 2),
                Span(gpu, "forward", x.name, start + x.reshard / 2, start + x.reshard / 2 + x.forward),
                Span(gpu, "backward", x.name, back, back + x.backward),
                Span(gpu, "reshard", x.name, times.gradients[index], end),
            ]
        held = [span for span in held if span.end > span.start]
        now = 0.0
        for span in sorted(held, key=lambda span: span.start):
            if span.start > now:
                spans.append(Span(gpu, "idle", "idle", now, span.start))
            now = max(now, span.end)
        if times.iteration_time > now:
            spans.append(Span(gpu, "idle", "idle", now, times.iteration_time))
        spans += held
    return spans


@few
@given(st.one_of(problems(), tied_problems(problems())), st.booleans())
def test_every_gpu_has_the_spans_of_a_simulation_of_that_gpu_alone(problem, overlap_sync):
    profile, cluster, batch = problem
    made = plan(profile, cluster, batch, 2.0, overlap_sync=overlap_sync)
    timeline = simulate(made).timeline
    assert Counter(timeline.spans) == Counter(one_by_one(made))
    assert all((a.gpu, a.start) < (b.gpu, b.start) for a, b in pairwise(timeline.spans))


@few
@given(st.one_of(problems(), tied_problems(problems())))
def test_an_iteration_is_held_or_idle_and_nothing_else(problem):
    made = plan(*problem, 1.5)
    found = simulate(made)
    assert found.gpu_seconds + found.idle_gpu_seconds == pytest.approx(made.gpus * found.iteration_time)
    assert found.gpu_seconds == pytest.approx(made.gpu_seconds)
    assert found.iteration_time == pytest.approx(made.iteration_time)


@few
@given(problems(), st.booleans())
def test_what_a_core_waits_for_within_transfers_is_idle(problem, overlap_sync):
    made = plan(*problem, 1.5, overlap_sync=overlap_sync)
    as_held, found = simulate(made), simulate(waiting(made))
    moved = {
        kind: sum(span.duration for span in as_held.timeline.spans if span.kind == kind) for kind in ("reshard", "sync")
    }
    assert found.timeline == as_held.timeline
    assert found.gpu_seconds == pytest.approx(as_held.gpu_seconds - moved["reshard"] / 4 - moved["sync"] / 2)
    assert found.gpu_seconds + found.idle_gpu_seconds == pytest.approx(made.gpus * found.iteration_time)


@few
@given(problems())
def test_groups_of_gpus_are_all_gpus_once(problem):
    made = plan(*problem, 1.5)
    groups = replay(made)
    assert sorted(gpu for group in groups for gpu in group.gpus) == list(range(made.gpus))
    assert all(span.gpu == group.gpus[0] for group in groups for span in group.spans)


def test_a_thousand_gpus_are_replayed_as_the_few_kinds_that_they_are():
    made = plan_of(
        layer("conv", 1024, forward=1.0), layer("mid", 8, forward=1.0), layer("fc", 1, forward=1.0), gpus=2048
    )
    groups = replay(made)
    assert [(group.gpus[0], group.gpus[-1], len(group.spans)) for group in groups] == [
        (0, 0, 3),
        (1, 7, 3),
        (8, 1023, 2),
        (1024, 2047, 1),
    ]
    assert {group.spans[-1].end for group in groups} == {3.0}


def test_a_background_job_takes_every_gap():
    made = plan_of(layer("conv", 2, forward=1.0), layer("fc", 1, forward=3.0), gpus=3)
    found = simulate(made, background_sample_time=0.5)
    gaps = [(span.gpu, span.start, span.end) for span in found.timeline.spans if span.kind == "background"]
    assert gaps == [(1, 1.0, 4.0), (2, 0.0, 4.0)]
    assert found.background_samples == pytest.approx(7.0 / 0.5)
