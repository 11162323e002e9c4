"""One rank that trains in two waves; see test_data_parallel.py."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from deeppool.costs.communication import Network
from deeppool.device.find import find_device
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.placement import place_model
from deeppool.interleaving.wavelet.data_parallel import WaveletDataParallel
from deeppool.interleaving.wavelet.driver import WaveDriver
from tests.execution.training_rank import Rule, captured_model, make_batch, stages, training


def train(rank: int, ranks: int, rules: tuple[Rule, ...], folder: str, kind: str, late: float, split: int) -> None:
    """Trains under each rule; saves both replicas, losses, and this rank's own gradients of the last iteration.

    Args:
        rank: this rank.
        ranks: number of ranks.
        rules: rules, whose stages are data parallel.
        folder: where to save.
        kind: kind of device.
        late: seconds by which the second rank is late to each forward.
        split: iterations after which a new trainer goes on from the state of all ranks; 0: never.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)
    for rule in rules:
        trainer, driver = make(rule, ranks, kind)
        losses = []
        if rank == 1:
            trainer.step.before_compute = lambda: delay(late)
        for update in range(rule.updates):
            if split and update == split:
                trainer, driver = resume(trainer, driver, lambda rule=rule: make(rule, ranks, kind))
            losses.append(trainer.iterate([batch_of(rule, update)]))
        trainer.driver.drain()
        torch.save(
            {
                "replicas": [{name: value.detach().cpu() for name, value in w.values.items()} for w in driver.waves],
                "losses": torch.tensor(losses, dtype=torch.float64),
                "gradients": [raw.cpu() for raw in driver.waves[(rule.updates - 1) % 2].raw],
            },
            Path(folder, f"{rule.name}-{rank}.pt"),
        )
        trainer.close()
    dist.destroy_process_group()


def make(rule: Rule, ranks: int, kind: str) -> tuple[Trainer, WaveDriver]:
    device = find_device(kind)
    captured = place_model(captured_model(rule), device.torch_device())
    made: list[WaveDriver] = []

    def driver(trainer: Trainer) -> WaveDriver:
        made.append(WaveletDataParallel().driver(trainer, NO_NETWORK))
        return made[-1]

    trainer = Trainer(
        captured,
        stages(rule, len(captured.graph.layers), ranks),
        ProcessGroup(device),
        training(rule),
        replay_graphs=False,
        make_driver=driver,
    )
    return trainer, made[0]


NO_NETWORK: Network = None  # type: ignore[assignment]  # waves take the library's all-reduce here


def batch_of(rule: Rule, number: int) -> Callable[[range], tuple[torch.Tensor, ...]]:
    data = make_batch(rule, number)
    return lambda shard: tuple(tensor[shard.start : shard.stop] for tensor in data)


def delay(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


def resume(
    trainer: Trainer, driver: WaveDriver, again: Callable[[], tuple[Trainer, WaveDriver]]
) -> tuple[Trainer, WaveDriver]:
    """Returns a new trainer in the state of the old one, as a checkpoint would restore it."""
    trainer.driver.drain()
    found: list = [None] * trainer.ranks
    dist.all_gather_object(found, (trainer.driver.state(), trainer.update.optimizer.state_dict()))
    values = {name: value.detach().clone() for name, value in trainer.state.items()}
    schedule = trainer.update.schedule
    iterations = trainer.step.iterations
    trainer.close()
    fresh, fresh_driver = again()
    with torch.no_grad():
        for name, value in fresh.state.items():
            value.copy_(values[name])
    fresh.update.optimizer.load_state_dict(found[0][1])
    if schedule is not None:
        fresh.update.schedule.load_state_dict(schedule.state_dict())
    fresh.driver.restore([state for state, _ in found])
    fresh.step.iterations = iterations
    return fresh, fresh_driver
