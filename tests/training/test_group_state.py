"""Optimizers that keep state in their groups, in updates whose steps have the gradients of some parameters."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from deeppool.device.cpu import CpuDevice
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel.deferred_optimizer import DeferredOptimizer
from deeppool.execution.eager_driver import EagerDriver
from deeppool.training.group_state import StepsOfSome
from deeppool.training.training_job import Training
from deeppool.training.update import Update

UPDATES = 4
Step = Callable[[torch.optim.Optimizer, list[nn.Parameter]], None]


class Counting(torch.optim.Optimizer):
    """Averages iterates by the number of steps in its groups, as schedule-free optimizers do."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": torch.tensor(0.1), "steps": 0, "weights": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            group["steps"] += 1
            group["weights"] += group["steps"] * float(group["lr"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * group["lr"] * group["steps"] / group["weights"])


class Collecting(torch.optim.Optimizer):
    """Takes its step size from the gradients of all parameters, as Prodigy does; none is known in the first step."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": torch.tensor(0.1), "distance": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    first = self.state[parameter].setdefault("first", parameter.clone())
                    group["distance"] += float((parameter.grad * (first - parameter)).sum())
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * (group["lr"] + group["distance"]))


class Late(torch.optim.SGD):
    """Counts its steps in its groups from the first one on, as timm's Adan and LAMB do."""

    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        super().step()


def train(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], step: Step) -> list[torch.Tensor]:
    """Returns the parameters after some updates with an exponential schedule."""
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = make(parameters)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(UPDATES):
        for parameter in parameters:
            parameter.grad = torch.randn(2, generator=generator)
        step(optimizer, parameters)
        schedule.step()
    return [parameter.detach() for parameter in parameters]


def whole(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    optimizer.step()


def update_of(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], model: int = 3) -> Update:
    named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    others = [(str(number), nn.Parameter(torch.ones(2))) for number in range(len(named), model)]
    return Update(
        named,
        Training(optimizer=lambda named: optimizer),
        torch.device("cpu"),
        CpuDevice().fetch,
        trained=[*named, *others],
        counted=parameters,
        total=lambda tensor: None,
        scaled=False,
    )


class InParts:
    """An update of a rank under a plan of transfers."""

    def __init__(self) -> None:
        self.update: Update | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        self.update = self.update or update_of(optimizer, parameters)
        for parameter in parameters:
            self.update.step([parameter])


class Deferred:
    """An update in parts of a wrapped model."""

    def __init__(self) -> None:
        self.deferred: DeferredOptimizer | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        self.deferred = self.deferred or DeferredOptimizer(optimizer)
        self.deferred.keep_settings()
        kept = optimizer.param_groups[0]["lr"]
        now = float(kept)
        # A schedule goes on before the update is complete.
        kept *= 0.5
        for parameter in parameters:
            self.deferred.update([parameter])
        assert float(optimizer.param_groups[0]["lr"]) == 0.5 * now
        kept *= 2


@pytest.mark.parametrize("step", [InParts(), Deferred()], ids=["in-parts", "deferred"])
def test_an_update_in_parts_counts_once(step: Step) -> None:
    for found, expected in zip(train(Counting, step), train(Counting, whole), strict=True):
        torch.testing.assert_close(found, expected)


class Decaying(torch.optim.SGD):
    """Decays all parameters and averages them, whatever gradients they have."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
        groups = [{"params": named[:1]}, {"params": named[1:]}]
        super().__init__(groups, lr=torch.tensor(0.1))
        for group in self.param_groups:
            group["steps"] = 0
        self.register_step_post_hook(lambda *_: self.visit(lambda parameter: parameter.add_(0.01)))

    @torch.no_grad()
    def visit(self, change: Callable[[nn.Parameter], object]) -> None:
        for group in self.param_groups:
            for _, parameter in zip(group["param_names"], group["params"], strict=True):
                change(parameter)

    def step(self) -> None:  # type: ignore[override]  # without a closure
        self.visit(lambda parameter: parameter.mul_(0.9))
        super().step()
        self.visit(lambda each: each.add_(self.state[each].setdefault("mean", each.clone()).lerp_(each, 0.3)))


class DecayingByCount(Decaying):
    """Counts steps in its groups, too, for which the first updates are checked by steps without gradients."""

    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            group["steps"] += 1
        super().step()


class OfSome:
    """The updates of a rank that has some parameters of the model."""

    def __init__(self) -> None:
        self.update: Update | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        self.update = self.update or update_of(optimizer, parameters, model=4)
        self.update.step()


@pytest.mark.parametrize("make", [Decaying, DecayingByCount])
@pytest.mark.parametrize("step", [InParts, Deferred, OfSome])
def test_an_update_in_parts_changes_once_what_has_no_gradient_in_a_part(
    make: type[Decaying], step: Callable[[], Step]
) -> None:
    for found, expected in zip(train(make, step()), train(make, whole), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("step", [InParts(), Deferred()], ids=["in-parts", "deferred"])
def test_a_step_size_from_the_gradients_of_all_parameters_is_refused_in_parts(step: Step) -> None:
    with pytest.raises(InvalidValueError, match="a step of Collecting computes 'distance' from the gradients of all"):
        train(Collecting, step)


@pytest.mark.parametrize("step", [InParts(), Deferred()], ids=["in-parts", "deferred"])
def test_a_count_that_the_first_step_makes_is_refused_in_parts(step: Step) -> None:
    with pytest.raises(InvalidValueError, match="a step of Late adds 'step' to its groups, and here a step has the"):
        train(Late, step)


def test_a_process_with_some_parameters_counts_but_cannot_take_a_step_size_from_all() -> None:
    hooks = []
    for make in (Counting, Collecting):
        parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        optimizer = make(parameters)
        optimizer.register_step_post_hook(lambda *_: hooks.append(1))
        update = update_of(optimizer, parameters)
        if make is Collecting:
            assert update_of(optimizer, parameters, model=2).complete
        for number in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones(2)
            if make is Collecting and number == 1:
                with pytest.raises(InvalidValueError, match="a plan whose layers all have all GPUs"):
                    update.step()
            else:
                update.step()
    # The checks call no hooks of the user.
    assert len(hooks) == 4


def test_eager_sgd_makes_one_step_an_update_or_refuses_what_counts_steps() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    optimizer = Counting(parameters)
    driver = EagerDriver.__new__(EagerDriver)
    driver._steps = StepsOfSome(optimizer)
    for everywhere, vectors in ((True, 1), (False, 1), (True, 2)):
        driver._everywhere, driver._vectors = everywhere, [SimpleNamespace()] * vectors  # type: ignore[list-item]
        if vectors == 1:
            driver._step(optimizer, parameters)
        else:
            with pytest.raises(InvalidValueError, match="each step of Counting changes 'steps' of its groups, and"):
                driver._step(optimizer, parameters)
