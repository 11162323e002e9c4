"""A job beside another has random numbers of its own, also in graphs that are repeated later."""

from collections.abc import Callable

import pytest
import torch

from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.device.protocol import Device

DRAWS = 3


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return find_device(request.param)


def drawing(device: Device) -> Callable[[], list[float]]:
    """A graph that draws; each call repeats it."""
    drawn = torch.zeros(4, device=device.torch_device())
    with device.stream("high").current():
        (graph,) = device.repeatable(drawn.uniform_)
    device.synchronize()

    def draw() -> list[float]:
        graph()
        device.synchronize()
        return [float(x) for x in drawn.cpu()]

    return draw


def test_a_foreground_draws_the_same_numbers_whatever_a_background_draws_in_between(device: Device) -> None:
    foreground = drawing(device)
    start = device.random_state()
    assert start is not None
    expected = [foreground() for _ in range(DRAWS)]
    assert len({tuple(draw) for draw in expected}) == DRAWS
    before_host = torch.get_rng_state()
    with device.own_random_numbers():
        # As models are made: it seeds every device.
        torch.manual_seed(5)
        background = drawing(device)
    assert torch.equal(torch.get_rng_state(), before_host)
    device.set_random_state(start)
    found, beside = [], []
    for _ in range(DRAWS):
        beside.append(background())
        found.append(foreground())
    assert found == expected
    assert len({tuple(draw) for draw in beside}) == DRAWS


def test_the_state_of_a_device_is_restored(device: Device) -> None:
    draw = drawing(device)
    state = device.random_state()
    assert state is not None
    first = draw()
    assert draw() != first
    device.set_random_state(state)
    assert draw() == first


def test_a_cpus_random_numbers_are_the_hosts_and_are_restored_after_the_block() -> None:
    device = CpuDevice()
    assert device.random_state() is None
    before = torch.get_rng_state()
    with device.own_random_numbers():
        torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), before)
