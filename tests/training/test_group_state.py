"""Optimizers that keep state in their groups, in updates whose steps have the gradients of some parameters."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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


class CountingOwn(torch.optim.Optimizer):
    """Counts steps by which it divides, from the first one on, in those groups only of which it has gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__([{"params": parameters[:1]}, {"params": parameters[1:]}], {"lr": torch.tensor(0.1)})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            if given:
                group["steps"] = self.following(group.get("steps"))
            for parameter in given:
                parameter.sub_(parameter.grad * group["lr"] / group["steps"])

    def following(self, steps: Any) -> Any:
        return 1 if steps is None else steps + 1


class CountingInTensors(CountingOwn):
    """Counts in a tensor, which stays the same object."""

    def following(self, steps: Any) -> Any:
        return torch.ones(()) if steps is None else steps.add_(1)


class Clipping(torch.optim.SGD):
    """Clips by the norm of all gradients, as timm's LAMB does; those of the test are too small at first."""

    def step(self) -> None:  # type: ignore[override]  # without a closure
        torch.nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 10)
        super().step()


class Warming(Clipping):
    """Has the learning rate 0 in the first update, as at the start of a schedule."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=torch.tensor(0.0))


class CountingItself(torch.optim.SGD):
    """Counts its steps in an attribute."""

    steps = 0

    def step(self) -> None:  # type: ignore[override]  # without a closure
        self.steps += 1
        super().step()


class Averaging(torch.optim.SGD):
    """Moves all parameters towards their mean."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        super().step()
        parameters = [each for group in self.param_groups for each in group["params"]]
        mean = torch.cat([each.flatten() for each in parameters]).mean()
        for each in parameters:
            each.lerp_(mean, 0.1)


def train(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], step: Step, shape: tuple[int, ...] = (2,)
) -> list[torch.Tensor]:
    """Returns the parameters after some updates with an exponential schedule."""
    parameters = [nn.Parameter(torch.ones(shape)) for _ in range(3)]
    optimizer = make(parameters)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(UPDATES):
        for parameter in parameters:
            parameter.grad = torch.randn(shape, generator=generator)
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
        group = optimizer.param_groups[0]
        now = float(group["lr"])
        # A schedule goes on before the update is complete.
        group["lr"] *= 0.5
        for parameter in parameters:
            self.deferred.update([parameter])
        assert float(group["lr"]) == 0.5 * now
        group["lr"] *= 2


@pytest.mark.parametrize("make", [Counting, CountingOwn, CountingInTensors])
@pytest.mark.parametrize("step", [InParts, Deferred])
def test_an_update_in_parts_counts_once(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], step: Callable[[], Step]
) -> None:
    for found, expected in zip(train(make, step()), train(make, whole), strict=True):
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


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum": 0.9, "fused": True}],
    "Adam": [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True, "maximize": True}],
    "AdamW": [{}, {"foreach": True}, {"fused": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9}],
    "Adagrad": [{}, {"fused": True}, {"lr_decay": 0.1, "initial_accumulator_value": 0.1}],
} | {name: [{}] for name in ("ASGD", "Adadelta", "Adafactor", "Adamax", "Muon", "NAdam", "RAdam", "Rprop")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, choices in OPTIONS.items() for options in choices], ids=str
)
@pytest.mark.parametrize("step", [InParts, Deferred, OfSome])
def test_optimizers_of_torch_update_in_parts_as_in_one_step(
    name: str, options: dict[str, Any], step: Callable[[], Step]
) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": parameters[:1], "lr": 0.01}, {"params": parameters[1:]}]
        return getattr(torch.optim, name)(groups, **options)

    def resume(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        others = [nn.Parameter(torch.ones(6, 5)) for _ in parameters]
        before, optimizer = make(others), make(parameters)
        for other in others:
            other.grad = torch.full_like(other, 0.1)
        before.step()
        optimizer.load_state_dict(before.state_dict())
        return optimizer

    for start in (make, resume):
        for found, expected in zip(train(start, step(), (6, 5)), train(start, whole, (6, 5)), strict=True):
            torch.testing.assert_close(found, expected)


def test_the_optimizers_of_torch_are_known() -> None:
    """Others compute the loss again, or take no dense gradients."""
    found = {name for name, each in vars(torch.optim).items() if isinstance(each, type) and hasattr(each, "step")}
    assert found - {"Optimizer", "LBFGS", "SparseAdam"} == set(OPTIONS)


@pytest.mark.parametrize("make", [Collecting, Clipping, Warming, CountingItself, Averaging])
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("step", [InParts, Deferred, OfSome])
def test_a_step_that_depends_on_other_parameters_is_refused(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], resumed: bool, step: Callable[[], Step]
) -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = make(parameters)
    for number in range(2 if resumed else 1):
        for parameter in parameters:
            parameter.grad = torch.full((2,), 0.01)
        if number < resumed:
            optimizer.step()
    before = [parameter.detach().clone() for parameter in parameters]
    match = rf"a step of {type(optimizer).__name__} changes a parameter differently without the gradients of others"
    with pytest.raises(InvalidValueError, match=match):
        step()(optimizer, parameters)
    for parameter, value in zip(parameters, before, strict=True):
        assert torch.equal(parameter, value)


class Unknown(torch.optim.SGD):
    """Copies of it cannot be made."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.lock = threading.Lock()


class Noisy(torch.optim.SGD):
    """Adds noise to its gradients, as for Langevin dynamics."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)

    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad += torch.randn_like(parameter)
        super().step()


def test_an_optimizer_that_draws_random_numbers_is_refused_in_parts_for_that() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    with pytest.raises(InvalidValueError, match=r"a step of Noisy changes .* of others, or by chance, and"):
        InParts()(Noisy(parameters), parameters)


def test_an_optimizer_that_cannot_be_tried_is_refused_in_parts() -> None:
    with pytest.raises(InvalidValueError, match="whether a step of Unknown needs all gradients cannot be tried"):
        train(Unknown, InParts())
    train(Unknown, whole)


class Drawing(Counting):
    """Draws numbers, and keeps state of parameters, of its own and of no parameter from the start."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.all = parameters
        self.total = torch.zeros(())
        self.state["common"] = {"steps": 0}
        for parameter in parameters:
            self.state[parameter]["sum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        super().step()
        self.total += 1
        self.state["common"]["steps"] += 1
        for parameter in self.all:
            parameter.add_(torch.rand(()))
            self.state[parameter]["sum"] += 1


def test_what_tries_an_optimizer_changes_nothing() -> None:
    parameters = [nn.Parameter(torch.ones(6, 5)) for _ in range(3)]
    optimizer = Drawing(parameters)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(InvalidValueError, match="a step of Drawing changes a parameter differently"):
        StepsOfSome(optimizer).begin()
    assert torch.equal(torch.rand(3), expected)
    assert (optimizer.total, optimizer.state["common"]) == (0, {"steps": 0})
    assert [(group["steps"], group["weights"]) for group in optimizer.param_groups] == [(0, 0.0)]
    assert len(optimizer.state) == 4
    for parameter in parameters:
        assert torch.equal(parameter, torch.ones(6, 5))
        assert torch.equal(parameter.grad, torch.ones(6, 5))
        assert torch.equal(optimizer.state[parameter]["sum"], torch.zeros(6, 5))


class Wrapping(torch.optim.Optimizer):
    """Averages the iterates of another optimizer, as Lookahead does; that one is clipping or not."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__([each for group in inner.param_groups for each in group["params"]], {"steps": 0})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        self.inner.step()
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    slow = self.state[parameter].setdefault("slow", parameter.clone())
                    parameter.copy_(slow.lerp_(parameter, 1 / group["steps"]))


@pytest.mark.parametrize("step", [InParts, Deferred, OfSome])
def test_an_optimizer_in_another_one_is_tried_with_it(step: Callable[[], Step]) -> None:
    def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Wrapping(torch.optim.Adam(parameters, lr=torch.tensor(0.1)))

    for found, expected in zip(train(adam, step()), train(adam, whole), strict=True):
        torch.testing.assert_close(found, expected)
    with pytest.raises(InvalidValueError, match="a step of Wrapping changes a parameter differently"):
        train(lambda parameters: Wrapping(Warming(parameters)), step())


def test_a_process_with_some_parameters_counts_but_cannot_take_a_step_size_from_all() -> None:
    hooks = []
    for make in (Counting, Collecting):
        parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        optimizer = make(parameters)
        optimizer.register_step_post_hook(lambda *_: hooks.append(1))
        update = update_of(optimizer, parameters)
        if make is Collecting:
            assert update_of(optimizer, parameters, model=2).complete
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones(2)
            if make is Collecting:
                with pytest.raises(InvalidValueError, match="a plan whose layers all have all GPUs"):
                    update.step()
            else:
                update.step()
    # What tries steps calls no hooks of the user.
    assert len(hooks) == 2


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
