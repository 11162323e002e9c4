"""The optimizer step: what all ranks of a training decide together."""

import pytest
import torch
from torch import nn

from deeppool.device.find import find_device
from deeppool.training.training_job import Training
from deeppool.training.update import Update

META = torch.device("meta")


def test_a_rank_without_parameters_adds_to_the_norm_on_the_device_of_the_others() -> None:
    devices: list[torch.device] = []
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1), clip_norm=1.0)
    update = Update([], rule, META, counted=[], total=lambda tensor: devices.append(tensor.device), scaled=False)
    with pytest.raises(RuntimeError, match="meta"):  # which has no numbers
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
        named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
        update = Update(named, rule, place, counted=parameters, total=lambda tensor: None, scaled=False)
        for given, order in zip(gradients, orders, strict=True):
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient.clone()
            for chosen in [None] if order is None else [[parameters[number]] for number in order]:
                update.step(chosen)
            assert all(parameter.grad is None for parameter in parameters)
        trained.append(torch.stack([parameter.detach() for parameter in parameters]))
    assert torch.equal(*(parameters.cpu() for parameters in trained))
