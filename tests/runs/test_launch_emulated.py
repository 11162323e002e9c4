"""A measured run on the emulated device: the background shares the rank's device by streams, as on a GPU."""

from dataclasses import replace

import pytest

import deeppool as dp
from deeppool.base.live_sample import LiveSample
from deeppool.cluster.cluster import find_cluster
from deeppool.collocation.background_placement import THREAD
from tests.strategies import profile_from_times

EXAMPLE, BATCH = "examples.two_branch:two_branch", 2


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
def test_a_background_runs_in_a_stream_of_the_ranks_process_and_no_condition_is_about_cores() -> None:
    graph = dp.capture(EXAMPLE).graph
    profile = profile_from_times(graph, [lambda b: 1e-4 * b] * len(graph.layers))
    plan = dp.plan(replace(profile, device="emulated"), find_cluster("loopback", 1), BATCH)
    samples: list[LiveSample] = []
    run = dp.launch(plan, background=EXAMPLE, policy="feedback", steps=3, on_sample=samples.append)
    assert run.background is not None
    assert (run.device, run.background.home) == ("emulated", THREAD)
    assert run.background.priority == "stream priority low"
    assert run.background.ended == "stopped"
    assert run.background.throughput > 0
    assert run.background.alone_throughput > 0
    # Cores that sleep, and spinners that keep them awake, are conditions of a CPU.
    assert run.foreground.alone_asleep is None
    assert {sample.condition for sample in samples} == {
        "warming up",
        "learning",
        "awake",
        "collocated",
        "background alone",
    }
    # The device was idle for part of the time, and all ranks computed.
    assert all(0 < share < 1 for share in run.foreground.alone.idle_share)
    assert len(run.governors) == 1
