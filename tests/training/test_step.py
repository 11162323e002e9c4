"""A step in parts trains as PyTorch's own loop does: however the model is cut, in any order of buckets, interleaved."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest
import torch

from deeppool.device.cpu import CpuDevice
from deeppool.device.emulated import tensor as emulated_tensor
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.errors import InvalidValueError, RunError
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.extract import extract
from deeppool.graph.capture.placement import place_model
from deeppool.training.bucket import Bucket
from deeppool.training.graph_replay import GraphReplay
from deeppool.training.step import Part, TrainingStep
from deeppool.training.training_job import Training
from tests.execution.training_rank import Model, Rule
from tests.sampling import sampled

RULE = Rule("step", batch_norm=True, dtype=torch.float64)
UPDATES, BATCH = 3, 6
Data = tuple[torch.Tensor, ...]
Drive = Callable[[TrainingStep, Sequence[Data]], None]


class Replaying(CpuDevice):
    """A CPU that repeats works as a GPU does: it warms up, and then all of them read memory at fixed addresses."""

    asynchronous = True

    def repeatable(self, *works: Callable[[], None]) -> tuple[Callable[[], None], ...]:
        for _ in range(3):
            for work in works:
                work()
        return works


@cache
def captured_once() -> CapturedModel:
    return capture(Model(RULE).double(), (3, 6, 6), input_dtype=torch.float64)


class Job:
    """A model with two branches, a tied parameter and BatchNorm, and its batches."""

    def __init__(self, device: Device, seed: int = 0, batch: int = BATCH) -> None:
        self.device, self.batch, place = device, batch, device.torch_device()
        self.captured = captured_once().copy()
        self.model = self.captured.source
        torch.manual_seed(seed)
        weights = Model(RULE).double().state_dict()
        self.model.load_state_dict(weights)
        place_model(self.captured, place)
        self.batches: list[Data] = [
            (torch.randn(batch, 3, 6, 6, dtype=torch.float64).to(place), torch.randint(10, (batch,)).to(place))
            for _ in range(2 * UPDATES)
        ]

    def step(self, parts: int = 3, training: Training | None = None, **choices: object) -> TrainingStep:
        count = len(self.captured.graph.layers)
        edges = [round(part * count / parts) for part in range(parts + 1)]
        segments = [extract(self.captured, range(first, last)) for first, last in itertools.pairwise(edges)]
        made = [Part(str(index), segment, range(self.batch), self.batch) for index, segment in enumerate(segments)]
        return TrainingStep(self.captured, made, training or rule(), self.device, **choices)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def rule(**choices: object) -> Training:
    return Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9, weight_decay=0.01), **choices)


@cache
def by_torch(device: str, accumulation: int, clip_norm: float | None) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and final state of PyTorch's own loop: one program, one autograd graph."""
    job = Job(find_device(device))
    parameters = list(job.captured.program.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    losses = []
    for batches in _batched(job.batches, accumulation):
        mean = 0.0
        for data in batches:
            loss = job.captured.program(*data) / accumulation
            loss.backward()
            mean += float(loss.detach())
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(mean)
    return losses, job.state()


def _batched(items: Sequence[Data], size: int) -> Iterator[Sequence[Data]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def all_at_once(step: TrainingStep, batches: Sequence[Data]) -> None:
    step.compute([reader(data) for data in batches])
    step.start_sync()
    step.finish_sync()
    step.update()


def overlapping(step: TrainingStep, batches: Sequence[Data]) -> None:
    step.compute([reader(data) for data in batches], step.start_sync)
    step.finish_sync()
    step.update()


def by_buckets_backwards(step: TrainingStep, batches: Sequence[Data]) -> None:
    ready: list[Bucket] = []
    step.compute([reader(data) for data in batches], ready.append)
    assert ready == list(step.buckets)
    for part in (step.start_sync, step.finish_sync, step.update):
        for bucket in reversed(ready):
            part(bucket)


def into_the_next_forward(step: TrainingStep, batches: Sequence[Data]) -> None:
    """Sums stay in flight when the step returns; a part is updated just before it computes again."""

    def finish(part: int) -> None:
        if pending := step.pending(part):
            step.finish_sync(*pending)
            step.update(*pending)

    step.compute([reader(data) for data in batches], step.start_sync, finish)


def reader(data: Data) -> Callable[[range], Data]:
    return lambda samples: tuple(tensor[samples.start : samples.stop] for tensor in data)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        *sampled(["replaying cpu", "emulated", "emulated:h200"], "emulated"),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize(("parts", "accumulation", "clip_norm"), [(1, 1, None), (3, 2, 0.1), (9, 1, 0.1), (9, 2, None)])
@pytest.mark.parametrize("drive", [all_at_once, overlapping, by_buckets_backwards])
def test_a_step_in_parts_trains_as_pytorchs_own_loop(
    drive: Drive, parts: int, accumulation: int, clip_norm: float | None, device: str
) -> None:
    found = Replaying() if device == "replaying cpu" else find_device(device)
    losses, state = by_torch("cpu" if device == "replaying cpu" else device, accumulation, clip_norm)
    job = Job(found)
    step = job.step(parts, rule(accumulation=accumulation, clip_norm=clip_norm), announces_early=drive is overlapping)
    assert all(isinstance(run, GraphReplay) for run in step.passes) == found.asynchronous
    for batches, expected in zip(_batched(job.batches, accumulation), losses, strict=True):
        drive(step, batches)
        assert step.loss() == pytest.approx(expected, rel=1e-12)
    for name, value in job.state().items():
        torch.testing.assert_close(value, state[name], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "emulated", "emulated:h200"])
@pytest.mark.parametrize("drive", [overlapping, by_buckets_backwards, into_the_next_forward])
def test_buckets_in_any_order_are_bit_equal_to_all_at_once(drive: Drive, device: str) -> None:
    states = []
    for chosen in (all_at_once, drive):
        job = Job(find_device(device))
        step = job.step()
        for data in job.batches:
            chosen(step, [data])
        step.finish_sync()
        step.update()
        assert not step.pending()
        states.append(job.state())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "emulated", "emulated:h200"])
def test_two_interleaved_jobs_train_as_each_alone(device: str) -> None:
    """The parts of one job run between those of another, as two jobs that cross over do."""
    found, alone = find_device(device), []
    for seed in (0, 1):
        job = Job(found, seed)
        step = job.step()
        for data in job.batches:
            all_at_once(step, [data])
        alone.append(job.state())
    jobs = [Job(found, seed) for seed in (0, 1)]
    steps = [job.step() for job in jobs]
    steps[0].compute([reader(jobs[0].batches[0])])
    for number in range(len(jobs[0].batches)):
        steps[0].start_sync()
        steps[1].compute([reader(jobs[1].batches[number])])
        steps[0].finish_sync()
        steps[1].start_sync()
        steps[0].update()
        if number + 1 < len(jobs[0].batches):
            steps[0].compute([reader(jobs[0].batches[number + 1])])
        steps[1].finish_sync()
        steps[1].update()
    for job, state in zip(jobs, alone, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in job.state().items())


@pytest.mark.parametrize(("clip_norm", "message"), [(None, "needs those of its own"), (1.0, "clipping and the loss")])
def test_an_update_before_its_sums_is_refused(clip_norm: float | None, message: str) -> None:
    job = Job(CpuDevice())
    step = job.step(training=rule(clip_norm=clip_norm))
    step.compute([reader(job.batches[0])])
    first, last = step.buckets[0], step.buckets[-1]
    step.finish_sync(first)
    with pytest.raises(RunError, match=message):
        step.update(last)
    if clip_norm is None:
        step.update(first)


def test_a_part_without_anything_to_train_has_no_backward() -> None:
    torch.manual_seed(0)
    captured = capture(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)), (2, 2))
    data = torch.randn(3, 2, 2), torch.tensor([0, 1, 0])
    captured.program(*data).backward()
    weight = captured.source.get_parameter("1.weight")
    expected, weight.grad = weight.grad, None
    captured.source.get_parameter("1.bias").grad = None
    parts = [Part(str(index), extract(captured, [index]), range(3), 3) for index in range(2)]
    step = TrainingStep(captured, parts, rule(), CpuDevice())
    step.compute([reader(data)])
    torch.testing.assert_close(weight.grad, expected)


@pytest.mark.parametrize("parts", [1, 3])
def test_each_input_is_sent_to_the_device_once(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part reads the targets alone, not the inputs again."""
    device = find_device("emulated")
    job = Job(device)
    step = job.step(parts)
    host = [tensor.cpu() for tensor in job.batches[0]]
    sent = []
    staged = emulated_tensor._staged

    def count(tensor: torch.Tensor) -> torch.Tensor:
        sent.extend([tuple(tensor.shape)] if type(tensor) is torch.Tensor and tensor.dim() else [])
        return staged(tensor)

    monkeypatch.setattr(emulated_tensor, "_staged", count)
    step.compute([reader(host)])
    device.synchronize()
    assert sent == [tuple(tensor.shape) for tensor in host]


@pytest.mark.parametrize("where", ["model", "optimizer", "schedule"])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_gradient_that_is_made_in_the_process_is_refused(kind: str, where: str) -> None:
    def hooked(parameters: Sequence[torch.nn.Parameter]) -> None:
        getattr(parameters[-1], kind)(lambda value: None)

    def optimizer(named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        if where == "optimizer":
            hooked([parameter for _, parameter in named])
        return torch.optim.SGD(named, lr=0.1)

    def schedule(made: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        if where == "schedule":
            hooked(made.param_groups[0]["params"])
        return torch.optim.lr_scheduler.ExponentialLR(made, 0.5)

    job = Job(CpuDevice())
    if where == "model":
        hooked(list(job.model.parameters()))
    with pytest.raises(InvalidValueError, match=r"^'.*\.bias' of Model has a hook on its gradient, which"):
        job.step(training=Training(optimizer=optimizer, schedule=schedule), announces_early=True)
