"""One rank of a plan with concurrent branches, among real or emulated ranks: see test_emulated_rank.py."""

import dataclasses
import json
from pathlib import Path

import torch
import torch.distributed as dist

from deeppool.device.cpu import CpuDevice
from deeppool.execution.communicator import Communicator, ProcessGroup
from deeppool.execution.emulated_rank import EmulatedCommunicator
from deeppool.execution.replay_schedule import replay_schedule
from deeppool.execution.stages import stages_of
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.planning.plan import Plan
from tests.execution.gradient_rank import captured_model, make_batch
from tests.execution.training_rank import Rule, training
from tests.planning.searched import plan
from tests.strategies import profile_from_times

BATCH = 6
ON_ONE_GPU = {"left": (0,), "right": (1,), "tied": (0,)}


def make_captured(*_: object) -> CapturedModel:
    """Returns the model with weights of its own; called in advance, it is captured once for all ranks."""
    return captured_model("branches", torch.float32).copy()


def make_plan(captured: CapturedModel, *, overlap_sync: bool) -> Plan:
    """Branches side by side, what follows them on one GPU, stem and head on both; all in round milliseconds."""
    profile = profile_from_times(captured.graph, [lambda b: 1e-3] * len(captured.graph.layers))
    made = plan(profile, 2, BATCH, overlap_sync=overlap_sync)
    layers = []
    for layer in made.layers:
        gpus = ON_ONE_GPU.get(layer.name.partition(".")[0], (0, 1))
        times = {"forward": 2e-3, "backward": 3e-3, "reshard": 2e-3, "sync": 1e-3 if len(gpus) > 1 else 0.0}
        layers.append(dataclasses.replace(layer, gpus=gpus, gpu_count=len(gpus), **times))
    return dataclasses.replace(made, layers=tuple(layers))


def spans_of(captured: CapturedModel, made: Plan, communicator: Communicator) -> list[list]:
    """Kind, stage and operation of all that a rank does in its second iteration."""
    trainer = Trainer(captured, stages_of(made), communicator, training(Rule("")), overlap_sync=made.overlap_sync)
    inputs, targets = make_batch("branches", BATCH, torch.float32)
    for _ in range(2):
        trainer.iterate([lambda shard: (inputs[shard.start : shard.stop], targets[shard.start : shard.stop])])
    trainer.close()
    assert all(start <= end for *_, start, end in trainer.spans)
    return [[kind, stage, name] for kind, stage, name, _, _ in trainer.spans]


def emulate(made: Plan, rank: int) -> EmulatedCommunicator:
    return EmulatedCommunicator(rank, made.gpus, replay_schedule(made, stages_of(made), rank))


def run_rank(rank: int, folder: str) -> None:
    """Writes what a real rank does, with all-reduces after each backward, and beside them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=2)
    found = []
    for overlap_sync in (False, True):
        captured = make_captured()
        found.append(spans_of(captured, make_plan(captured, overlap_sync=overlap_sync), ProcessGroup(CpuDevice())))
    Path(folder, f"spans-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
