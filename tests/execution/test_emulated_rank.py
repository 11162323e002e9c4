"""An emulated rank on a virtual clock: its iterations take as long as in the plan's schedule."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deeppool.device.event_times import HostEventTimes
from deeppool.device.find import find_device
from deeppool.execution.emulated_rank import EmulatedCommunicator
from deeppool.execution.replay_schedule import replay_schedule
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.placement import place_model
from deeppool.planning.evaluate.schedule import order_of, schedule
from deeppool.training.graph_replay import GraphReplay
from tests.device.host_clock import HostClock
from tests.execution import emulated_rank
from tests.execution.gradient_rank import make_batch, make_model
from tests.execution.training_rank import Rule, training
from tests.planning.searched import plan
from tests.ranks import run_ranks
from tests.sampling import examples
from tests.strategies import (
    contested_problems,
    make_graph,
    problems,
    profile_from_times,
    series_parallel_graphs,
    tangled_graphs,
    tied_problems,
)


class VirtualRank:
    """Calls the communicator as a trainer does, in the same order; its stages take given times."""

    def __init__(self, made, rank):
        self.plan, self.rank, self.stages = made, rank, stages_of(made)
        self.clock = HostClock()
        self.idle = 0.0
        schedule = replay_schedule(made, self.stages, rank)
        times = HostEventTimes(clock=self.clock, wait_until=self.clock.wait_until)
        self.communicator = EmulatedCommunicator(rank, made.gpus, schedule, times)
        self.group = self.communicator.group([0, 1])

    def iterate(self, seconds):
        """Runs one iteration; returns its seconds."""
        began = self.clock.now
        self.communicator.begin()
        own = [index for index, stage in enumerate(self.stages) if self.rank in stage.layout.gpus]
        for index in own:
            self.compute("forward", index, seconds)
        for index in reversed(own):
            self.compute("backward", index, seconds)
            if not self.plan.overlap_sync:
                self.sum_up(index)
        if self.plan.overlap_sync:
            for index in reversed(range(len(self.stages))):
                if any(self.rank in self.owners(layer) for layer in self.stages[index].layers):
                    self.sum_up(index)
        self.communicator.end()
        return self.clock.now - began

    def owners(self, layer):
        """The GPUs that have its parameters, or share these with it."""
        layers = self.plan.layers
        return set(layers[layer].gpus).union(*(layers[user].gpus for user in layers[layer].later_users))

    def compute(self, kind, index, seconds):
        # Some of what a stage reads comes from others, or nothing does; the wait is as long.
        receiving = [(torch.empty(2), 1)] if index % 2 else []
        before = self.clock.now
        for work in self.communicator.exchange(receiving, []):
            work.wait()
        self.communicator.enter(kind, index)
        self.idle += self.clock.now - before
        self.clock.now += seconds(kind, index)
        self.communicator.leave(kind, index)

    def sum_up(self, index):
        work = self.group.all_reduce(torch.zeros(1))
        self.communicator.enter("sync", index)
        work.wait()
        self.communicator.leave("sync", index)


def predicted(made):
    """Returns the planned seconds of each stage, by kind and number."""
    stages = stages_of(made)
    return lambda kind, index: sum(getattr(made.layers[layer], kind) for layer in stages[index].layers)


@st.composite
def plans(draw):
    """The best plan of a problem, or its layers on any GPUs that take any time."""
    graphs = st.one_of(series_parallel_graphs(max_layers=8), tangled_graphs(max_layers=6))
    profile, cluster, batch = draw(
        st.one_of(problems(graphs), contested_problems(graphs), tied_problems(contested_problems(graphs)))
    )
    limit = draw(st.sampled_from([None, 1.5, 3.0]))
    made = plan(profile, cluster, batch, limit, overlap_sync=draw(st.booleans()))
    if draw(st.booleans()):
        return made
    counts = st.integers(0, 8).map(lambda count: 1e-3 * count)
    sets = st.sets(st.integers(0, made.gpus - 1), min_size=1).map(lambda found: tuple(sorted(found)))
    layers = []
    for layer in made.layers:
        gpus, times = draw(sets), {name: draw(counts) for name in ("reshard", "forward", "backward", "sync")}
        layers.append(dataclasses.replace(layer, gpus=gpus, gpu_count=len(gpus), **times))
    made = dataclasses.replace(made, layers=tuple(layers))
    return dataclasses.replace(made, iteration_time=oracle(made, made.layers))


def oracle(made, layers):
    """Returns the seconds of an iteration whose layers take other times."""
    gpus = made.gpu_sets
    return schedule(order_of(made.tree, gpus), gpus, layers, overlap_sync=made.overlap_sync).iteration_time


@examples(150)
@given(plans())
def test_iteration_time_equals_the_prediction_when_layer_times_do(made):
    for rank in range(made.gpus):
        emulated = VirtualRank(made, rank)
        for _ in range(2):
            assert emulated.iterate(predicted(made)) == pytest.approx(made.iteration_time, rel=1e-9, abs=1e-12)


@examples(150)
@given(plans(), st.data())
def test_iteration_time_follows_the_schedule_for_other_layer_times(made, data):
    rank = data.draw(st.integers(0, made.gpus - 1))
    stages, changed, extra = stages_of(made), list(made.layers), {}
    for index, stage in enumerate(stages):
        for kind, layer in (("forward", stage.layers[0]), ("backward", stage.layers[-1])):
            # All of the change is in the layer that this pass meets first: the others follow as predicted.
            planned = getattr(made.layers[layer], kind)
            own = rank in stage.layout.gpus
            extra[kind, index] = data.draw(st.sampled_from([0.0, -planned, 1e-4, 5e-3])) if own else 0.0
            changed[layer] = dataclasses.replace(changed[layer], **{kind: planned + extra[kind, index]})
    times = predicted(made)
    took = VirtualRank(made, rank).iterate(lambda kind, index: times(kind, index) + extra[kind, index])
    assert took == pytest.approx(oracle(made, changed), rel=1e-9, abs=1e-12)


@examples(100)
@given(plans(), st.sampled_from([1e-3, 1e-5]))
def test_work_between_iterations_delays_other_ranks_by_its_lateness(made, pause):
    """A rank whose first operation is scheduled later than that, or never, delays no other."""
    for rank in range(made.gpus):
        emulated = VirtualRank(made, rank)
        emulated.communicator.barrier()
        emulated.iterate(predicted(made))
        emulated.clock.now += pause
        stages, seconds = stages_of(made), predicted(made)
        own = [index for index, stage in enumerate(stages) if rank in stage.layout.gpus]
        took = pause + emulated.iterate(seconds)
        if not own:
            assert took == pytest.approx(max(pause, made.iteration_time), rel=1e-9, abs=1e-12)
            continue
        first, changed = stages[own[0]], list(made.layers)
        gpus = made.gpu_sets
        times = schedule(order_of(made.tree, gpus), gpus, made.layers, overlap_sync=made.overlap_sync)
        begins = times.inputs[first.layers[0]] + sum(made.layers[layer].reshard for layer in first.layers) / 2
        late = max(0.0, pause - begins)
        layer = first.layers[0]
        changed[layer] = dataclasses.replace(changed[layer], forward=changed[layer].forward + late)
        assert took == pytest.approx(max(pause, oracle(made, changed)), rel=1e-9, abs=1e-12)


@examples(100)
@given(plans())
def test_stages_follow_the_schedule_and_none_spans_a_partition_boundary(made):
    stages = stages_of(made)
    assert sorted(layer for stage in stages for layer in stage.layers) == list(range(len(made.layers)))
    assert stages[-1].layers[-1] == len(made.layers) - 1
    gpus = made.gpu_sets
    times = schedule(order_of(made.tree, gpus), gpus, made.layers, overlap_sync=False)
    for stage in stages:
        assert {gpus[layer] for layer in stage.layers} == {stage.layout.gpus}
        begins = times.inputs[stage.layers[0]]
        for layer in stage.layers:
            assert times.inputs[layer] == pytest.approx(begins, rel=1e-9, abs=1e-12)
            begins += made.layers[layer].reshard / 2 + made.layers[layer].forward


def test_received_tensors_are_finite_small_and_constant():
    made = plan(profile_from_times(make_graph([()]), [lambda b: b]), 2, 16)
    communicator = EmulatedCommunicator(0, 2, replay_schedule(made, stages_of(made), 0))
    communicator.begin()
    numbers, tokens = torch.full((4, 3), torch.nan), torch.full((4,), 7)
    communicator.exchange([(numbers[1:3], 1), (tokens, 1)], [])
    first = numbers.clone()
    communicator.exchange([(numbers[1:3], 1)], [])
    assert torch.equal(first[1:3], numbers[1:3])
    assert 0 < float(numbers[1:3].abs().max()) < 0.1
    assert numbers[0].isnan().all()
    assert tokens.tolist() == [0] * 4


@pytest.mark.slow
@pytest.mark.processes
def test_an_emulated_rank_performs_the_operations_of_a_real_one_in_order(tmp_path: Path):
    run_ranks(emulated_rank.run_rank, (str(tmp_path),), 2, emulated_rank.make_captured)
    for rank in range(2):
        real = json.loads((tmp_path / f"spans-{rank}.json").read_text())
        for overlap_sync, spans in zip((False, True), real, strict=True):
            captured = emulated_rank.make_captured()
            made = emulated_rank.make_plan(captured, overlap_sync=overlap_sync)
            assert emulated_rank.spans_of(captured, made, emulated_rank.emulate(made, rank)) == spans
            assert {kind for kind, *_ in spans} == {"forward", "backward", "reshard", "sync", "update"}


@pytest.mark.parametrize("kind", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_emulated_rank_runs_its_stages_as_graphs(kind: str):
    device = find_device(kind)
    captured = place_model(capture(make_model("branches", torch.float32), (3, 6, 6)), device.torch_device())
    made = emulated_rank.make_plan(captured, overlap_sync=False)
    stages = stages_of(made)
    schedule = replay_schedule(made, stages, 0)
    communicator = EmulatedCommunicator(0, made.gpus, schedule, device.event_times())
    trainer = Trainer(captured, stages, communicator, training(Rule("")))
    for index, stage in enumerate(stages):
        assert isinstance(trainer.step.passes[index], GraphReplay) == (0 in stage.layout.gpus)
    inputs, targets = (x.to(device.torch_device()) for x in make_batch("branches", emulated_rank.BATCH, torch.float32))
    for _ in range(2):
        trainer.iterate([lambda shard: (inputs[shard.start : shard.stop], targets[shard.start : shard.stop])])
    assert {kind for kind, *_ in trainer.spans} == {"forward", "backward", "reshard", "sync", "update"}
    assert all(bool(parameter.isfinite().all()) for parameter in captured.source.parameters())
