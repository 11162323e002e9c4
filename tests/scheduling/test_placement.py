"""Placement of jobs on GPUs: invariants of every queue, and a few cases drawn by hand."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.scheduling.placement import Gpu, JobPlacement, Request, place, refill

ROLES = ("foreground", "background")


@st.composite
def clusters(draw):
    """Up to five nodes, not all alike."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    nodes = [f"node {index}" for index, size in enumerate(sizes) for _ in range(size)]
    return [Gpu(number, node) for number, node in enumerate(nodes)]


@st.composite
def situations(draw):
    """A cluster and jobs that each fit into it."""
    gpus = draw(clusters())
    jobs = draw(st.lists(st.tuples(st.sampled_from(ROLES), st.integers(1, len(gpus))), max_size=12))
    return gpus, [Request(number, role, count) for number, (role, count) in enumerate(jobs)]


def check(running, gpus):
    """Checks that each job holds existing GPUs once, at most one foreground and one background per GPU."""
    holders = Counter((placement.role, gpu) for placement in running for gpu in placement.gpus)
    assert set(holders.values()) <= {1}
    assert {gpu for _, gpu in holders} <= {gpu.number for gpu in gpus}


@given(situations(), st.data())
def test_jobs_share_no_slot_and_start_in_queue_order(situation, data) -> None:
    gpus, coming = situation
    waiting, running, started = [], [], []
    while coming or waiting or running:
        event = data.draw(st.sampled_from([*["come"] * bool(coming), *["end"] * bool(running)]))
        if event == "come":
            waiting.append(coming.pop(0))
        else:
            running.remove(data.draw(st.sampled_from(running)))
        placed = place(waiting, running, gpus)
        wanted = {request.job: request for request in waiting}
        assert all(len(found.gpus) == wanted[found.job].gpu_count for found in placed)
        assert all(found.role == wanted[found.job].role for found in placed)
        waiting = [request for request in waiting if request.job not in {found.job for found in placed}]
        running += placed
        started += placed
        check(running, gpus)
        # The first job of each queue waits only because no placement fits.
        for role in ROLES:
            first = next((request for request in waiting if request.role == role), None)
            held = sum(len(placement.gpus) for placement in running if placement.role == role)
            assert first is None or first.gpu_count > len(gpus) - held
    # The loop ends: no job waits for ever, and none was overtaken within its queue.
    for role in ROLES:
        order = [placement.job for placement in started if placement.role == role]
        assert order == sorted(order)


@given(situations())
def test_a_foreground_uses_as_few_nodes_as_possible(situation) -> None:
    gpus, jobs = situation
    for request in jobs:
        (found,) = place([Request(request.job, "foreground", request.gpu_count)], [], gpus)
        node = {gpu.number: gpu.node for gpu in gpus}
        rooms = sorted(Counter(node.values()).values(), reverse=True)
        fewest = next(count for count in range(1, len(rooms) + 1) if sum(rooms[:count]) >= request.gpu_count)
        assert len({node[gpu] for gpu in found.gpus}) == fewest
        # The ranks of a node are adjacent: collectives go around them node by node.
        visited = [node[gpu] for gpu in found.gpus]
        assert len([a for a, b in itertools.pairwise(visited) if a != b]) == fewest - 1


FOUR = [Gpu(0, "a"), Gpu(1, "a"), Gpu(2, "a"), Gpu(3, "b")]


@pytest.mark.parametrize(
    ("waiting", "running", "placed"),
    [
        # The fullest node that has room.
        ([Request(1, "foreground", 1)], [], [JobPlacement(1, "foreground", (3,))]),
        ([Request(1, "foreground", 2)], [], [JobPlacement(1, "foreground", (0, 1))]),
        # A background beside a foreground, but on a free GPU first.
        (
            [Request(2, "background", 2)],
            [JobPlacement(1, "foreground", (0, 1, 2))],
            [JobPlacement(2, "background", (3, 0))],
        ),
        # The small foreground does not pass the large one, a background does.
        (
            [Request(2, "foreground", 4), Request(3, "foreground", 1), Request(4, "background", 1)],
            [JobPlacement(1, "foreground", (3,))],
            [JobPlacement(4, "background", (0,))],
        ),
        # A job still holds a GPU whose node was lost.
        ([Request(2, "foreground", 1)], [JobPlacement(1, "foreground", (3, 7))], [JobPlacement(2, "foreground", (0,))]),
    ],
)
def test_placement_of_one_job(waiting, running, placed) -> None:
    assert place(waiting, running, FOUR) == tuple(placed)


@given(situations(), st.data())
def test_a_job_that_lost_gpus_keeps_the_others_and_gets_what_is_free_in_place_of_them(situation, data) -> None:
    gpus, requests = situation
    running = list(place(requests, [], gpus))
    if not running:
        return
    job = data.draw(st.sampled_from(running))
    lost = data.draw(st.sets(st.sampled_from(gpus)))
    left = [gpu for gpu in gpus if gpu not in lost]
    found = refill(job, len(job.gpus), running, left)
    kept = {gpu.number for gpu in left} & {*job.gpus}
    others = [placement for placement in running if placement != job]
    check([*others, found], gpus)
    assert kept <= {*found.gpus}
    assert {*found.gpus} <= {gpu.number for gpu in left}
    held = {gpu for placement in running if placement.role == job.role for gpu in placement.gpus}
    free = {gpu.number for gpu in left} - held
    assert len(found.gpus) == min(len(job.gpus), len(kept) + len(free))


def test_a_refilled_job_fills_the_node_with_the_most_of_its_gpus_first() -> None:
    gpus = [Gpu(number, f"node {number // 3}") for number in range(6)]
    job = JobPlacement(1, "foreground", (0, 1, 2, 3, 4, 5))
    assert refill(job, 6, [job], gpus) is job
    assert refill(job, 6, [job], gpus[1:]).gpus == (3, 4, 5, 1, 2)
    other = JobPlacement(2, "foreground", (6,))
    spare = [*gpus[1:], Gpu(6, "node 1"), Gpu(7, "node 0")]
    assert refill(job, 6, [job, other], spare).gpus == (1, 2, 7, 3, 4, 5)
