"""Ranks that train a small model by eager-SGD; each writes its results to a file of its own."""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

import deeppool as dp
from deeppool.collectives.perform.process_group import init_process_group
from deeppool.device.find import find_device
from deeppool.execution.eager_replica import EagerReplica

STEPS = 12
SETTINGS = {
    "full": {"mode": "full"},
    "restored": {"mode": "full"},
    "log": {"mode": "solo", "delivery": "log"},
    "tcp": {"mode": "solo", "address": "127.0.0.1"},
    "latest": {"mode": "solo", "delivery": "latest", "average_every": 5, "staleness_limit": 4},
}


def train(rank: int, ranks: int, what: str, place: torch.device) -> dict:
    inputs = (torch.arange(float(ranks * STEPS * 4)).view(ranks, STEPS, 4).remainder(7).double() / 7).to(place)
    model = torch.nn.Linear(4, 1).double().to(place)
    with torch.no_grad():
        model.weight.fill_(rank + 0.5)
        model.bias.fill_(1.0)
    # As a model's permutation of features: no training changes it.
    model.register_buffer("order", torch.tensor([rank, 7], device=place))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    with dp.EagerSGD(**SETTINGS[what]).wrap(model, optimizer, schedule=schedule) as eager:
        assert model.order.tolist() == [0, 7]
        if what == "restored":
            restore(eager)
        while eager.updates < STEPS:
            (model(inputs[rank, eager.updates]) - 1).square().sum().backward()
            if rank == 1 and what not in ("full", "restored"):
                time.sleep(0.02)  # a late rank: rounds go on without it
            eager.step()
    weights = [*model.weight.flatten().tolist(), model.bias.item()]
    return {"weights": weights, "updates": eager.updates, "gradients": eager.gradients}


def restore(eager: EagerReplica) -> None:
    """Continues a run of two ranks that had a gradient each in their send buffers, and adds none of its own."""
    states = [
        {"updates": 11, "pending": torch.tensor([v] * 5 + [1, 1]).double(), "pending_gradients": 1} for v in (1, 2)
    ]
    eager.load_state_dicts(states)
    eager.step()


def run_rank(rank: int, folder: Path, ranks: int, kind: str) -> None:
    torch.set_num_threads(1)
    device = find_device(kind)
    init_process_group(device, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = {what: train(rank, ranks, what, device.torch_device()) for what in SETTINGS}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
