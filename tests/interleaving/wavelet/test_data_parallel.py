"""Two waves train as two replicas in plain torch do, whose gradients are averaged; what one frees the other uses."""

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.collectives.layout import Layout
from deeppool.device.emulated.device import new_device
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.tick_tock import TIMED, WARM_UP, train_waves
from deeppool.execution.checkpoint import latest
from deeppool.execution.communicator import SingleRank
from deeppool.execution.span_recorder import RawSpan
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.losses import classification_loss
from deeppool.interleaving.wavelet.driver import WaveDriver
from deeppool.interleaving.wavelet.wave import Wave
from deeppool.training.data import SampleOrder
from deeppool.training.training_job import Training
from tests.execution.training_rank import Rule, make_batch, make_model, make_optimizer, make_schedule, prepare
from tests.interleaving.wavelet.waves_rank import train
from tests.ranks import run_ranks
from tests.strategies import profile_from_times

MOMENTUM = Rule("momentum", data_parallel=True, frozen=True, updates=6)
RULES = (
    MOMENTUM,
    replace(MOMENTUM, name="odd", updates=5),
    replace(MOMENTUM, name="adamw-schedule", optimizer="AdamW", schedule=True),
    replace(MOMENTUM, name="clipping", clip_norm=0.05),
)


def two_replicas(rule: Rule) -> tuple[list[nn.Module], list[float], list[list[torch.Tensor]]]:
    """Trains one after the other two replicas by the paper's equation 1; returns them, losses and raw gradients."""
    models = [make_model(rule), make_model(rule)]
    trained = [[(name, p) for name, p in model.named_parameters() if p.requires_grad] for model in models]
    optimizers = [make_optimizer(rule, each) for each in trained]
    schedules = [make_schedule(optimizer) for optimizer in optimizers] if rule.schedule else []
    losses, raws = [], []
    for number in range(rule.updates):
        own = trained[number % 2]
        inputs, targets = make_batch(rule, number)
        loss = classification_loss(models[number % 2](inputs), targets)
        loss.backward()
        losses.append(float(loss.detach()))
        raws.append([parameter.grad.clone() for _, parameter in own])
        if number:
            for (_, parameter), before in zip(own, raws[-2], strict=True):
                parameter.grad = (parameter.grad + before) / 2
        if rule.clip_norm is not None:
            nn.utils.clip_grad_norm_([parameter for _, parameter in own], rule.clip_norm)
        optimizers[number % 2].step()
        optimizers[number % 2].zero_grad()
        for optimizer, schedule in zip(optimizers, schedules, strict=bool(schedules)):
            optimizer._opt_called = True
            schedule.step()
    return models, losses, raws


def run(ranks: int, rules: tuple[Rule, ...], folder: Path, kind: str = "cpu", late: float = 0.0, split: int = 0):
    folder.mkdir()
    run_ranks(train, (ranks, rules, str(folder), kind, late, split), ranks, prepare)
    return {
        rule.name: [torch.load(folder / f"{rule.name}-{rank}.pt", weights_only=True) for rank in range(ranks)]
        for rule in rules
    }


def check(rule: Rule, found: list[dict]) -> None:
    models, losses, raws = two_replicas(rule)
    assert torch.allclose(sum(each["losses"] for each in found), torch.tensor(losses, dtype=torch.float64))
    for each in found:
        for replica, model in zip(each["replicas"], models, strict=True):
            for name, value in model.state_dict().items():
                assert torch.allclose(replica[name], value, rtol=1e-9, atol=1e-12), name
    names = [name for name, parameter in models[0].named_parameters() if parameter.requires_grad]
    for position, name in enumerate(names):
        last = sum(each["gradients"][position] for each in found)
        assert torch.allclose(last, raws[-1][position], rtol=1e-9, atol=1e-12), name


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("ranks", "kind"), [(3, "cpu"), (2, "emulated")])
def test_both_replicas_are_those_of_the_papers_equation(ranks: int, kind: str, tmp_path: Path) -> None:
    rules = RULES if kind == "cpu" else RULES[:1]
    for rule, found in zip(rules, run(ranks, rules, tmp_path / "run", kind).values(), strict=True):
        check(rule, found)


@pytest.mark.slow
@pytest.mark.processes
def test_a_training_resumed_on_its_ranks_and_one_with_a_late_rank_are_the_same(tmp_path: Path) -> None:
    # The first resumes before an iteration of the tick wave, the other before one of the tock wave.
    for rule, split in ((RULES[2], 2), (RULES[0], 3)):
        found = run(2, (rule,), tmp_path / rule.name, late=0.002, split=split)
        check(rule, found[rule.name])


def product(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient does not depend on the weights: that of a batch is known in closed form."""
    return (outputs.squeeze(1) * targets).mean()


def train_by_product(
    folder: Path, attempts: list[tuple[int, int, bool]], optimizer: Callable, schedule: Callable | None = None
) -> tuple[torch.Tensor, list[torch.Tensor], dict]:
    """Trains a model by :func:`product` in attempts of some ranks, up to some update, in waves or not.

    Returns its weights at the start, the gradients of all batches, and the first rank's state at the end.
    """
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(24, 4, generator=generator), torch.randn(24, generator=generator)
    model = nn.Linear(4, 1, bias=False)
    job = dp.TrainingJob(
        model=model,
        input_shape=(4,),
        dataset=lambda: torch.utils.data.TensorDataset(inputs, targets),
        loss=product,
        optimizer=optimizer,
        schedule=schedule,
    )
    captured = job.capture()
    profile = profile_from_times(captured.graph, [lambda batch: 1e-2 * batch] * len(captured.graph.layers))
    start = model.weight.detach().clone()
    for gpus, steps, waves in attempts:
        sync = dp.WaveletDataParallel() if waves else None
        dp.train(dp.plan(profile, gpus, 6), job, steps=steps, checkpoints=folder, gradient_sync=sync)
    positions = map(SampleOrder(24, 6, job.seed).positions, range(attempts[-1][1]))
    gradients = [(inputs[chosen] * targets[chosen, None]).mean(0, keepdim=True) for chosen in positions]
    return start, gradients, torch.load(latest(folder) / "rank-0.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
def test_replicas_of_plain_sgd_differ_by_the_closed_form_also_when_another_number_of_ranks_resumes(
    tmp_path: Path,
) -> None:
    attempts = [(2, 3, True), (3, 6, True)]
    start, gradients, shard = train_by_product(tmp_path, attempts, lambda named: torch.optim.SGD(named, lr=0.5))
    tick, tock = shard["model"]["weight"], shard["gradient_sync"]["replica"]["weight"]
    assert torch.allclose(tick - tock, -0.5 * (gradients[0] - gradients[5]) / 2, atol=1e-6)
    # Each update is made from the mean of two gradients, but for the first.
    updates = [gradients[0], *((a + b) / 2 for a, b in itertools.pairwise(gradients))]
    assert torch.allclose(tick, start - 0.5 * sum(updates[0::2]), atol=1e-6)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
def test_a_training_that_goes_on_in_waves_gives_both_its_optimizer_and_its_schedule(tmp_path: Path) -> None:
    def sgd(parameters: list) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)

    def decay(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    start, gradients, shard = train_by_product(tmp_path, [(2, 3, False), (2, 6, True)], sgd, decay)
    replicas = [nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [sgd([parameter]) for parameter in replicas]
    schedules = [decay(optimizer) for optimizer in optimizers]
    for number, gradient in enumerate(gradients):
        for wave in range(2) if number < 3 else [number % 2]:
            replicas[wave].grad = gradient if number < 4 else (gradients[number - 1] + gradient) / 2
            optimizers[wave].step()
        for schedule in schedules:
            schedule.step()
    for found, expected in zip((shard["model"], shard["gradient_sync"]["replica"]), replicas, strict=True):
        assert torch.allclose(found["weight"], expected, atol=1e-6)


def on_gpu(batch: int, waves: int, *, pools: int = 1) -> tuple[int, list[RawSpan]]:
    """Trains on an emulated H200; returns the memory that it reserves, and spans."""
    device = new_device("h200")
    if pools == 2:
        device.streams_of_one_pool = lambda count: tuple(device.stream("high") for _ in range(count))
    layers = (module for width in (8, *[256] * 8) for module in (nn.Linear(width, 256), nn.Tanh()))
    run, spans = train_waves(capture(nn.Sequential(*layers), (8,)), device, batch, waves=waves)
    return run.memory, spans


class Detached(nn.Module):
    """A layer that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.side(x).detach()


def test_weights_that_no_gradient_reaches_do_not_decay() -> None:
    captured = capture(Detached(), (4,))
    before = {name: value.clone() for name, value in captured.source.state_dict().items()}
    stage = Stage("all", tuple(range(len(captured.graph.layers))), Layout((0,), 2))
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1, weight_decay=0.5))
    trainer = Trainer(captured, [stage], SingleRank(), rule, make_driver=WaveDriver)
    for _ in range(4):
        trainer.iterate([lambda samples: (torch.ones(len(samples), 4), torch.zeros(len(samples), dtype=torch.int64))])
    trainer.driver.drain()
    for wave in trainer.driver.waves:
        for name, value in wave.values.items():
            assert torch.equal(value, before[name]) == name.startswith("side"), name
    trainer.close()


@pytest.mark.slow
def test_a_wave_computes_in_memory_that_the_other_frees_while_it_does() -> None:
    alone, _ = on_gpu(65_536, 1)
    together, spans = on_gpu(65_536, 2)
    apart, _ = on_gpu(65_536, 2, pools=2)
    doubled, _ = on_gpu(2 * 65_536, 1)
    assert together < 1.1 * alone
    assert min(apart, doubled) > 1.8 * alone
    forwards, backwards = ([span[3:] for span in spans if span[0] == kind] for kind in ("forward", "backward"))
    assert len(forwards) == len(backwards) == WARM_UP + TIMED
    for ordered in (forwards, backwards):
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ordered))
    # But for the first one after the pause before the measurement.
    overlaps = [start < end for (start, _), (_, end) in zip(forwards[1:], backwards, strict=False)]
    assert overlaps == [number != WARM_UP for number in range(1, WARM_UP + TIMED)]


@pytest.mark.slow
def test_a_wave_computes_backward_while_the_gradients_of_the_other_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = new_device("h200")
    # As NCCL's: it takes one multiprocessor of many, and here longer than a backward.
    network = device.partial_stream(1)
    sums = []

    def update(wave: Wave) -> None:
        with network.current():
            began = device.stamp()
            torch.zeros(2**23, device=device.torch_device()).add_(1)
            sums.append((began, device.stamp()))
        alone(wave)

    alone = Wave.update
    monkeypatch.setattr(Wave, "update", update)
    layers = (module for _ in range(4) for module in (nn.Linear(512, 512), nn.Tanh()))
    _, spans = train_waves(capture(nn.Sequential(*layers), (512,)), device, 8192, waves=2)
    backward = min(end - start for kind, *_, start, end in spans if kind == "backward")
    pauses = [device.seconds(end, start) for (_, end), (start, _) in itertools.pairwise(sums)]
    # All but the one before the measurement.
    del pauses[WARM_UP - 1]
    assert max(pauses) < 0.5 * backward < min(device.seconds(*each) for each in sums)


@pytest.mark.stress
@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_on_a_cpu_the_peak_of_two_waves_is_lower_with_one_heap() -> None:
    peaks: dict[str, list[int]] = {"one": [], "own": []}
    for _ in range(3):
        for heaps, found in peaks.items():
            command = [sys.executable, "-m", "tests.interleaving.wavelet.peak_of_waves", heaps]
            found.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert statistics.median(peaks["one"]) < statistics.median(peaks["own"])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Training(optimizer=torch.optim.SGD, accumulation=2), "average the gradients of two batches by themselves"),
        (Training(optimizer=torch.optim.SGD, synchronise_batch_norm=True), "synchronised BatchNorm"),
    ],
)
def test_what_waves_cannot_follow_is_refused(rule: Training, message: str) -> None:
    captured = capture(nn.Linear(4, 4), (4,))
    stages = [Stage("all", (0,), Layout((0,), 4))]
    with pytest.raises(InvalidValueError, match=message):
        Trainer(captured, stages, SingleRank(), rule, make_driver=WaveDriver)
