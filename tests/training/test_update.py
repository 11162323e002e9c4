"""The optimizer step: what all ranks of a training decide together."""

from typing import Any

import pytest
import torch
from torch import nn

from deeppool.device.cpu import CpuDevice
from deeppool.device.emulated.device import new_device
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.errors import InvalidValueError
from deeppool.training.momentum_sgd import momentum_sgd
from deeppool.training.training_job import Training
from deeppool.training.update import Update, UpdateOutcome

META = torch.device("meta")
fetch = CpuDevice().fetch


def update_of(parameters: list[nn.Parameter], rule: Training, device: Device, *, scaled: bool) -> Update:
    """The update of one process."""
    named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    place = device.torch_device()
    return Update(named, rule, place, device.fetch, counted=parameters, total=lambda tensor: None, scaled=scaled)


def test_a_rank_without_parameters_adds_to_the_norm_on_the_device_of_the_others() -> None:
    devices: list[torch.device] = []
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1), clip_norm=1.0)
    update = Update([], rule, META, fetch, counted=[], total=lambda tensor: devices.append(tensor.device), scaled=False)
    update.step()
    assert devices == [META]


@pytest.mark.parametrize("device", ["cpu", "emulated", "emulated:h200"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_an_update_in_parts_is_the_update_of_all_at_once(clip_norm: float | None, device: str) -> None:
    """Adam with a schedule, whose state would show a step too many or too few; three updates, each in another order."""
    rule = Training(
        optimizer=lambda named: torch.optim.Adam(named, lr=0.1),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        clip_norm=clip_norm,
    )
    place = find_device(device).torch_device()
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(3, 3, 4, generator=generator).to(place)
    trained = []
    for orders in ([None, None, None], [[2, 0, 1], [0, 1, 2], [1, 2, 0]]):
        parameters = [nn.Parameter(torch.ones(4, device=place)) for _ in range(3)]
        update = update_of(parameters, rule, find_device(device), scaled=False)
        ended: list[UpdateOutcome] = []
        update.on_end = ended.append
        for given, order in zip(gradients, orders, strict=True):
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient.clone()
            for chosen in [None] if order is None else [[parameters[position]] for position in order]:
                update.step(chosen)
            assert all(parameter.grad is None for parameter in parameters)
        assert ended == [(rate, False, False) for rate in (0.1, 0.05, 0.025)]
        trained.append(torch.stack([parameter.detach() for parameter in parameters]))
    assert torch.equal(*(parameters.cpu() for parameters in trained))


def train_with_torchs_scaler(
    gradients: torch.Tensor, clip_norm: float | None
) -> tuple[list[float], list[float], list[UpdateOutcome]]:
    """Trains a parameter by given scaled gradients as torch does; returns its values, all scales and outcomes."""
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler, scales, outcomes = torch.amp.GradScaler("cpu"), list[float](), list[UpdateOutcome]()
    for gradient in gradients:
        scaler.scale(torch.zeros(1))
        scales.append(scaler.get_scale())
        parameter.grad = gradient * scales[-1]
        scaler.unscale_(optimizer)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(parameter, clip_norm)
        scaler.step(optimizer)
        scaler.update()
        made = scaler.get_scale() >= scales[-1]
        outcomes.append(UpdateOutcome(optimizer.param_groups[0]["lr"], not made, False))
        if made:
            schedule.step()
    return parameter.tolist(), scales, outcomes


@pytest.mark.parametrize("device", ["cpu", "emulated", "emulated:h200"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("fused", [True, False])
def test_updates_that_overflow_are_skipped_as_by_torchs_scaler(
    fused: bool, clip_norm: float | None, device: str
) -> None:
    gradients = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    for number, value in ((0, torch.inf), (3, torch.nan), (4, -torch.inf)):
        gradients[number, 1] = value
    found = find_device(device)
    parameter = nn.Parameter(torch.ones(4, device=found.torch_device()))
    rule = Training(
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9, fused=fused),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        clip_norm=clip_norm,
    )
    update = update_of([parameter], rule, found, scaled=True)
    scales, ended = list[float](), list[UpdateOutcome]()
    update.on_end = ended.append
    for number, gradient in enumerate(gradients):
        scales.append(update.scale.factor)
        parameter.grad = (gradient * scales[-1]).to(parameter.device)
        update.step()
        # The first update that is made creates the momentum; torch's fused SGD must not skip that one.
        assert update.decided == (not fused or number < 2)
        assert len(ended) == number + update.decided
    update.decide()
    values, expected, outcomes = train_with_torchs_scaler(gradients, clip_norm)
    assert scales == expected
    assert ended == outcomes
    assert parameter.tolist() == pytest.approx(values, rel=1e-6)


class SkippingSgd(torch.optim.Optimizer):
    """An optimizer that skips an update on the device, as torch's fused ones do.

    On the emulated device these copy the number to the host: to torch's native code all its tensors are on the CPU.
    """

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"fused": True})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            skips = getattr(self, "found_inf", torch.zeros((), device=parameter.device))
            parameter.sub_(torch.where(skips > 0, 0.0, parameter.grad))


def host_waits(device: Device, rule: Training, *, scaled: bool) -> bool:
    """Whether the host waits in the second update for gradients that the device still computes."""
    place = device.torch_device()
    parameter = nn.Parameter(torch.ones(4, device=place))
    update = update_of([parameter], rule, device, scaled=scaled)
    wide = torch.empty(2**14, 2**14, device=place)
    for _ in range(2):
        device.synchronize()
        parameter.grad = torch.ones(4, device=place)
        with device.times_only():
            wide.matmul(wide)
        computed = device.stamp()
        update.step()
        waited = device.passed(computed)
    return waited


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_host_goes_on_where_the_optimizer_skips_updates_by_itself(clip_norm: float | None) -> None:
    assert not host_waits(new_device("h200"), Training(optimizer=SkippingSgd, clip_norm=clip_norm), scaled=True)


@pytest.mark.parametrize(("scaled", "waits"), [(True, True), (False, False)])
def test_for_any_other_optimizer_the_host_waits_only_if_losses_are_scaled(scaled: bool, waits: bool) -> None:
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9), clip_norm=0.5)
    assert host_waits(new_device("h200"), rule, scaled=scaled) == waits


@pytest.mark.gpu
def test_beside_a_gpu_the_host_goes_on_with_the_optimizer_of_models_by_name() -> None:
    rule = Training(optimizer=lambda named: momentum_sgd(named, 0.1, 0.9))
    assert not host_waits(find_device("cuda"), rule, scaled=True)


def test_an_optimizer_of_some_parameters_goes_on_after_the_others_overflowed() -> None:
    kept, left_out = (nn.Parameter(torch.ones(2)) for _ in range(2))
    rule = Training(optimizer=lambda named: torch.optim.SGD(named[:1], lr=0.1))
    update = update_of([kept, left_out], rule, CpuDevice(), scaled=True)
    ended: list[UpdateOutcome] = []
    update.on_end = ended.append
    for factor in (torch.inf, 1.0):
        kept.grad = torch.full((2,), update.scale.factor)
        left_out.grad = torch.full((2,), factor)
        update.step()
        assert kept.grad is None and left_out.grad is None
    assert [outcome.skipped for outcome in ended] == [True, False]
    assert kept.tolist() == pytest.approx([0.9, 0.9])


def test_gradients_that_no_loss_scale_makes_finite_are_told_of() -> None:
    parameter = nn.Parameter(torch.ones(2))
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1))
    update = update_of([parameter], rule, CpuDevice(), scaled=True)
    ended: list[UpdateOutcome] = []
    update.on_end = ended.append
    for value in [torch.nan] * 18 + [1.0]:
        parameter.grad = torch.full((2,), value)
        update.step()
    # From 65,536 to 1 by halves.
    assert ended == [(0.1, True, False)] * 16 + [(0.1, False, True)] * 2 + [(0.1, False, False)]


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"optimizer": lambda named: None}, "optimizer returned a NoneType"),
        (
            # Those of the user's own model, of which each rank has a copy: the loss would stay as it is, in silence.
            {"optimizer": lambda _: torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)},
            "optimizer returned a SGD of none of the parameters that it was given",
        ),
        ({"schedule": lambda optimizer: None}, "schedule returned None"),
        (
            {"optimizer": lambda named: torch.optim.LBFGS([parameter for _, parameter in named])},
            "a step of LBFGS computes the loss again",
        ),
        (
            {"schedule": torch.optim.lr_scheduler.ReduceLROnPlateau},
            "a step of ReduceLROnPlateau needs metrics, and that of a training has none",
        ),
    ],
)
def test_a_function_that_returns_nothing_or_what_needs_more_is_refused(changes: dict[str, Any], phrase: str) -> None:
    rule = Training(**{"optimizer": lambda named: torch.optim.SGD(named, lr=0.1)} | changes)
    with pytest.raises(InvalidValueError, match=phrase):
        update_of([nn.Parameter(torch.ones(2))], rule, CpuDevice(), scaled=False)


def test_an_optimizer_has_the_groups_of_the_whole_model_and_the_parameters_of_its_process() -> None:
    model = [(str(number), nn.Parameter(torch.ones(2))) for number in range(3)]
    made = []

    def optimizer(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        made.extend(name for name, _ in named)
        # Adagrad makes the state of each parameter at once.
        return torch.optim.Adagrad([{"params": [each], "lr": 0.1 * 2 ** int(each[0])} for each in named])

    rule = Training(optimizer=optimizer, schedule=lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1))
    own = model[1:2]
    update = Update(
        own,
        rule,
        torch.device("cpu"),
        fetch,
        trained=model,
        counted=[own[0][1]],
        total=lambda tensor: None,
        scaled=False,
    )
    assert made == ["0", "1", "2"]
    assert [group["params"] for group in update.optimizer.param_groups] == [[], [own[0][1]], []]
    assert [group["param_names"] for group in update.optimizer.param_groups] == [[], ["1"], []]
    assert list(update.optimizer.state) == [own[0][1]]
    assert update.schedule.base_lrs == [0.1, 0.2, 0.4]
    own[0][1].grad = torch.ones(2)
    update.step()
    assert [parameter.tolist() for _, parameter in model] == [[1.0, 1.0], pytest.approx([0.8, 0.8]), [1.0, 1.0]]


def test_a_schedule_may_be_made_with_its_optimizer() -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    update = update_of(
        [parameter],
        Training(optimizer=lambda named: optimizer, schedule=lambda made: schedule),
        CpuDevice(),
        scaled=False,
    )
    for _ in range(2):
        parameter.grad = torch.ones(1)
        update.step()
    assert parameter.tolist() == [-0.5]


def test_the_norm_of_complex_gradients_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, dtype=dtype, generator=generator) for dtype in (torch.complex64, torch.float32)]
    parameters, expected = ([nn.Parameter(torch.zeros_like(each)) for each in gradients] for _ in range(2))
    for parameter, other, gradient in zip(parameters, expected, gradients, strict=True):
        parameter.grad, other.grad = gradient.clone(), gradient.clone()
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=1.0), clip_norm=0.5)
    update_of(parameters, rule, CpuDevice(), scaled=False).step()
    nn.utils.clip_grad_norm_(expected, 0.5)
    for parameter, other in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), -other.grad)


def test_a_sparse_gradient_has_no_norm_and_is_refused() -> None:
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1), clip_norm=1.0)
    with pytest.raises(InvalidValueError, match=r"the norm of all gradients, and one is sparse, .* \(leave it False\)"):
        update_of([embedding.weight], rule, CpuDevice(), scaled=False).step()
