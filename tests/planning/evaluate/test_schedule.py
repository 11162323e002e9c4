"""When layers and all-reduces run: iterations worked out by hand, drawn in each docstring."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.costs.communication import Network, default_model
from deeppool.costs.table import price
from deeppool.graph.series_parallel import decompose
from deeppool.planning.evaluate.placement import Placement
from deeppool.planning.evaluate.schedule import (
    ExposedSync,
    busy_gpu_seconds,
    exposed_syncs,
    idle_seconds,
    order_of,
    schedule,
)
from deeppool.planning.request import gpu_counts_to_search
from tests.planning.evaluate.iteration_events import iteration_with_overlap
from tests.planning.search.test_search import Definition
from tests.sampling import examples
from tests.strategies import (
    computing_problems,
    contested_problems,
    series_parallel_graphs,
    tangled_graphs,
    tied_problems,
)


class Seconds(NamedTuple):
    forward: float
    backward: float
    all_reduce: float
    reshard: float = 0.0
    update: float = 0.0
    later_users: tuple[int, ...] = ()


CHAIN = [(), (0,), (1,)]


def run(predecessors, gpus, layers, **how):
    gpus = [tuple(used) for used in gpus]
    return schedule(order_of(decompose(predecessors), gpus), gpus, layers, **{"overlap_sync": True, **how})


def chain(*layers, gpus=None, **how):
    return run(CHAIN[: len(layers)], gpus or [range(2)] * len(layers), layers, **how)


def test_all_reduces_that_fit_under_later_layers_cost_nothing_but_the_last_one():
    """forward 0 1 2 until 3; backward 2: 3–5, 1: 5–7, 0: 7–9; all-reduce 2: 5–6, 1: 7–8, 0: 9–10."""
    times = chain(*[Seconds(1, 2, 1)] * 3)
    assert times.all_reduce == (9, 7, 5)
    assert times.iteration_time == 10
    assert chain(*[Seconds(1, 2, 1)] * 3, overlap_sync=False).iteration_time == 12


def test_big_all_reduce_of_the_last_backward_is_exposed():
    """backward ends at 9, and only then can layer 0 sum its gradients."""
    assert chain(Seconds(1, 2, 7), Seconds(1, 2, 0), Seconds(1, 2, 0)).iteration_time == 9 + 7


def test_big_all_reduce_of_the_first_backward_is_hidden():
    """backward 2: 3–5, then 4 s of backward are left, which hide all of its 4 s."""
    assert chain(Seconds(1, 2, 0), Seconds(1, 2, 0), Seconds(1, 2, 4)).iteration_time == 9
    assert chain(Seconds(1, 2, 0), Seconds(1, 2, 0), Seconds(1, 2, 6)).iteration_time == 11


def test_all_reduces_of_one_gpu_wait_for_one_another():
    """all-reduce 2: 5–11, 1: 11–12 although its layer ended at 7, 0: 12–13 although at 9."""
    times = chain(Seconds(1, 2, 1), Seconds(1, 2, 1), Seconds(1, 2, 6))
    assert times.all_reduce == (12, 11, 5)
    assert times.iteration_time == 13


def test_all_reduces_without_a_gpu_in_common_run_together():
    """Layers 1 and 2 on GPUs 0, 2 and on 1, 3: all-reduce 2: 5–11 and 1: 7–13; layer 0 on all waits for both."""
    layers = Seconds(1, 2, 1), Seconds(1, 2, 6), Seconds(1, 2, 6)
    times = chain(*layers, gpus=[(0, 1, 2, 3), (0, 2), (1, 3)])
    assert times.all_reduce == (13, 7, 5)
    # Neighbouring GPUs, some of which both have.
    assert chain(*layers, gpus=[(0, 1, 2, 3), (0, 1, 2), (2, 3)]).all_reduce == (17, 11, 5)


def test_branches_side_by_side_have_channels_of_their_own():
    """0 forks into 1 on GPU 0, 1 and 2 on GPU 2, 3; 3 joins.

    forward until 3; backward 3: 3–5, 1 and 2: 5–7, 0: 7–9. All-reduce 3: 5–6; 1: 7–10 beside 2: 7–11; 0 after both.
    """
    layers = [Seconds(1, 2, 1), Seconds(1, 2, 3), Seconds(1, 2, 4), Seconds(1, 2, 1)]
    times = run([(), (0,), (0,), (1, 2)], [range(4), range(2), range(2, 4), range(4)], layers)
    assert times.all_reduce == (11, 7, 7, 5)
    assert times.iteration_time == 12


def test_transfers_hide_all_reduces_too():
    """1: backward 2–4, its gradients travel 4–7, 0: backward 7–9; all-reduce 1: 4–7."""
    layers = Seconds(0, 2, 0), Seconds(1, 2, 3, reshard=2)
    times = run([(), (0,)], [range(2)] * 2, layers)
    assert (times.backward, times.gradients, times.all_reduce[1]) == ((5, 2), (7, 4), 4)
    assert times.iteration_time == 7


def test_exposed_is_what_no_layer_of_that_gpu_covers():
    """GPU 0 computes 2 and 0, GPU 1 all of them: on GPU 0 the all-reduce of 2, 5–11, shows from 5 to 7."""
    layers = Seconds(1, 2, 0), Seconds(1, 2, 0), Seconds(1, 2, 6)
    gpus = [(0, 1), (1,), (0, 1)]
    times = chain(*layers, gpus=gpus)
    assert list(exposed_syncs(times, layers, [0, 2])) == [ExposedSync(2, 5, 7), ExposedSync(2, 9, 11)]
    assert list(exposed_syncs(times, layers, [0, 1, 2])) == [ExposedSync(2, 9, 11)]
    # Computing takes 6 GPU-seconds on GPU 0 and 9 on GPU 1.
    assert busy_gpu_seconds(times, gpus, layers) == (6 + 4) + (9 + 2)


def test_the_gpu_with_the_longest_update_ends_the_iteration():
    """0 forks into 1 on GPU 0, 1 and 2 on GPU 2, 3; 3 joins on GPU 0. Both passes until 12, as above without updates.

    GPU 0 updates 0, 1 and 3 in 2 + 5 + 1 s, GPU 1 0 and 1 in 7 s, GPUs 2 and 3 0 and 2 in 5 s.
    """
    layers = [Seconds(1, 2, 1, 0, 2), Seconds(1, 2, 3, 0, 5), Seconds(1, 2, 4, 0, 3), Seconds(1, 2, 1, 0, 1)]
    gpus = [range(4), range(2), range(2, 4), range(1)]
    times = run([(), (0,), (0,), (1, 2)], gpus, layers)
    assert (times.update, times.iteration_time) == (12, 12 + 8)
    without = [layer._replace(update=0) for layer in layers]
    same = run([(), (0,), (0,), (1, 2)], gpus, without)
    assert busy_gpu_seconds(times, gpus, layers) == busy_gpu_seconds(same, gpus, without) + 8 + 7 + 5 + 5


def test_gpus_of_two_branches_with_the_same_parameters_sum_and_update_them_together():
    """0 forks into 1 on GPU 0 and 2 on GPU 1, which use the same parameters; 3 joins.

    forward until 3; backward 3: 3–5, 1: 5–7, 2: 5–11, 0: 11–13; all-reduce of both: 11–14; updates: 14–19.
    """
    layers = [Seconds(1, 2, 0), Seconds(1, 2, 3, update=5, later_users=(2,)), Seconds(1, 6, 0), Seconds(1, 2, 0)]
    gpus = [range(2), range(1), range(1, 2), range(2)]
    times = run([(), (0,), (0,), (1, 2)], gpus, layers)
    assert (times.all_reduce[1], times.update, times.iteration_time) == (11, 14, 19)
    # 3 s forward on both, 6 and 10 backward, 1 until the sum is there, and the update.
    assert busy_gpu_seconds(times, gpus, layers) == (3 + 6 + 1 + 5) + (3 + 10 + 1 + 5)
    assert idle_seconds(times, gpus, layers, 2) == [19 - 15, 19 - 19]
    assert list(exposed_syncs(times, layers, [0, 2, 3])) == [ExposedSync(1, 13, 14)]
    # An all-reduce of GPU 1 alone, 11–15, comes before.
    layers[2] = layers[2]._replace(all_reduce=4)
    assert run([(), (0,), (0,), (1, 2)], gpus, layers).all_reduce[1:3] == (15, 11)


def test_a_core_that_computes_half_of_an_all_reduce_does_half_of_a_backward_beside_it():
    """forward until 3; backward 2: 3–5; all-reduce 2: 5–7; backward 1: 1 s of it beside until 7, the rest 7–8.

    all-reduce 1: 8–14; backward 0: 8–12, all of it beside; all-reduce 0: 14–15.
    """
    layers = Seconds(1, 2, 1), Seconds(1, 2, 6), Seconds(1, 2, 2)
    times = chain(*layers, sync_computing=0.5)
    assert (times.backward, times.computed, times.all_reduce) == ((8, 5, 3), (12, 8, 5), (14, 8, 5))
    assert times.iteration_time == 15
    # On each GPU 3 s forward, 2 + 3 + 4 backward, and 3 at the end.
    assert busy_gpu_seconds(times, [range(2)] * 3, layers) == 2 * 15


def test_a_core_that_computes_all_of_an_all_reduce_does_nothing_beside_it():
    layers = Seconds(1, 2, 1, reshard=2), Seconds(1, 2, 6), Seconds(1, 2, 2, reshard=1)
    alone = chain(*layers, overlap_sync=False)
    assert chain(*layers, sync_computing=1.0).iteration_time == alone.iteration_time


def test_all_reduces_of_other_gpus_slow_nothing():
    """Layers 1 on GPU 1 and 2 on GPU 0, 2: all-reduce 2, 5–11, leaves layer 1 alone and slows layer 0 from 7 to 9."""
    layers = Seconds(1, 2, 0), Seconds(1, 2, 0), Seconds(1, 2, 6)
    times = chain(*layers, gpus=[(0, 1), (1,), (0, 2)], sync_computing=0.5)
    assert times.computed == (11, 7, 5)


def test_nothing_is_hidden_without_overlap():
    layers = Seconds(1, 2, 1, reshard=1), Seconds(1, 2, 3, reshard=1)
    gpus = [range(2)] * 2
    times = schedule((0, 1), gpus, layers, overlap_sync=False)
    assert times.iteration_time == sum(sum(layer[:4]) for layer in layers)
    assert busy_gpu_seconds(times, gpus, layers) == 2 * sum(sum(layer[:4]) for layer in layers)


@examples(150)
@given(
    st.one_of(
        contested_problems(st.one_of(series_parallel_graphs(max_layers=6), tangled_graphs(max_layers=5))),
        computing_problems(series_parallel_graphs(max_layers=6)),
        tied_problems(contested_problems(series_parallel_graphs(max_layers=6), gpus=(2, 3, 4))),
    ),
    st.randoms(use_true_random=False),
)
def test_any_assignment_is_timed_as_its_events_are(problem, random):
    definition = Definition(*problem)
    assignments = sorted(map(sorted, definition.assignments(definition.tree, 0, definition.cluster.gpus)))
    profile, cluster, batch = problem
    network = Network(cluster, default_model(cluster, "cpu"))
    costs = price(profile, network, batch, gpu_counts_to_search(cluster.gpus, batch))
    for assignment in random.sample(assignments, min(5, len(assignments))):
        places = [place for _, place in assignment]
        options = tuple(costs.gpu_counts.index(count) for count, _ in places)
        placed = Placement(costs, options, tuple(start for _, start in places))
        end, all_reduces = iteration_with_overlap(definition, places)
        assert placed.schedule.iteration_time == pytest.approx(end, rel=1e-9)
        for layer, (start, _) in all_reduces.items():
            assert placed.schedule.all_reduce[layer] == pytest.approx(start, rel=1e-9)
