"""Ranges of stages and layers in the trace of a profiler that the user has started."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from deeppool.collectives.layout import Layout
from deeppool.device import cuda
from deeppool.device.find import find_device
from deeppool.device.profiler_ranges import nvtx_range, record_range
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.training.training_job import Training


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


@pytest.fixture
def trainer(tmp_path: Path):
    dist.init_process_group("gloo", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    captured = capture(model(), (8,))
    layers = tuple(range(len(captured.graph.layers)))
    stages = [Stage("first", layers[:1], Layout((0,), 4)), Stage("second … last", layers[1:], Layout((0,), 4))]
    rule = Training(optimizer=lambda named: torch.optim.SGD([x for _, x in named], lr=0.1))
    yield Trainer(captured, stages, ProcessGroup(find_device("cpu")), rule)
    dist.destroy_process_group()


def iterate(trainer: Trainer) -> float:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(4, 8, generator=generator), torch.tensor([0, 1, 2, 3])
    return trainer.iterate([lambda shard: (inputs[shard.start : shard.stop], targets[shard.start : shard.stop])])


def profile() -> torch.profiler.profile:
    """A profiler of the CPU; torch 2.11 warns that it forgets earlier cycles if it is not told to keep them."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)


def test_a_users_profile_of_a_step_shows_its_stages_and_their_layers(trainer: Trainer, tmp_path: Path) -> None:
    with profile() as profiler:
        iterate(trainer)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"forward first", "forward second ... last"} <= {event["name"] for event in written}
    events = {event.name: event.time_range for event in profiler.events()}
    kinds = ("forward first", "forward second ... last", "backward second ... last", "backward first", "update")
    ordered = [events[name] for name in kinds]
    assert all(a.end <= b.start for a, b in itertools.pairwise(ordered))
    names = [layer.name for layer in trainer.captured.graph.layers]
    for name in names:
        stage = events["forward first" if name == names[0] else "forward second ... last"]
        assert stage.start <= events[name].start <= events[name].end <= stage.end
    products = [event.time_range for event in profiler.events() if event.name == "aten::addmm"]
    assert any(events[names[0]].start <= x.start and x.end <= events[names[0]].end for x in products)


def test_a_profile_changes_no_result(trainer: Trainer) -> None:
    with profile():
        seen = iterate(trainer)
    own = model()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(4, 8, generator=generator)
    loss = torch.nn.functional.cross_entropy(own(inputs), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert seen == pytest.approx(float(loss.detach()))
    for ours, theirs in zip(trainer.captured.source.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach() - 0.1 * theirs.grad)


def test_a_gpu_gets_an_nvtx_range_also_without_torchs_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("pop"))
    with nvtx_range("forward conv1"):
        seen.append("work")
    assert seen == ["forward conv1", "work", "pop"]
    assert cuda.nvtx_range is nvtx_range
    with record_range("nothing records this"):
        pass
