"""On the emulated device torch computes the same bits as on the CPU, in forward, backward and update."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from deeppool.device.find import find_device

STEPS, BATCH = 3, 4
Optimizer = Callable[..., torch.optim.Optimizer]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.GroupNorm(2, 8),
        nn.AvgPool2d(2, padding=1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.mix, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        mixed, _ = self.mix(x, x, x, need_weights=False)
        return self.head(functional.gelu(x + mixed)[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.steps = nn.Embedding(50, 8), nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.steps(self.embedding(tokens))[0][:, -1])


def images(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(BATCH, 3, 10, 10, generator=generator)


def tokens(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(50, (BATCH, 6), generator=generator)


def train(
    place: torch.device, make: Callable[[], nn.Module], draw: Callable[..., torch.Tensor], optimizer: Optimizer
) -> tuple[list[float], dict[str, torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = make().to(place)
    rule = optimizer(model.parameters())
    losses, gradients = [], list[torch.Tensor]()
    for _ in range(STEPS):
        inputs, targets = draw(generator).to(place), torch.randint(10, (BATCH,), generator=generator).to(place)
        rule.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        rule.step()
        losses.append(loss.detach())
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
    return [float(loss) for loss in losses], {k: v.cpu() for k, v in model.state_dict().items()}, gradients


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    ],
    ids=["sgd", "adamw"],
)
@pytest.mark.parametrize(
    ("make", "draw"),
    [(convolutions, images), (Attention, tokens), (Recurrent, tokens)],
    ids=["images", "tokens", "recurrent"],
)
def test_a_training_gives_the_bits_of_the_cpu(
    kind: str, make: Callable[[], nn.Module], draw: Callable[..., torch.Tensor], optimizer: Optimizer
) -> None:
    place = find_device(kind).torch_device()
    expected, found = (train(where, make, draw, optimizer) for where in (torch.device("cpu"), place))
    assert found[0] == expected[0]
    assert all(torch.equal(value, expected[1][name]) for name, value in found[1].items())
    assert all(map(torch.equal, found[2], expected[2]))


def test_kernels_have_the_threads_of_the_host_whenever_its_number_changes(kind: str) -> None:
    place, before = find_device(kind).torch_device(), torch.get_num_threads()
    try:
        for count in (2, 1, 2):
            torch.set_num_threads(count)
            expected, found = (
                train(where, Attention, tokens, torch.optim.SGD) for where in (torch.device("cpu"), place)
            )
            assert found[0] == expected[0]
            assert all(map(torch.equal, found[2], expected[2]))
    finally:
        torch.set_num_threads(before)


def test_autocast_gives_the_bits_of_the_cpu(kind: str) -> None:
    results = []
    for place in (torch.device("cpu"), find_device(kind).torch_device()):
        torch.manual_seed(0)
        model, data = convolutions().to(place), torch.randn(BATCH, 3, 10, 10).to(place)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(data)
        assert output.dtype == torch.bfloat16
        output.float().square().sum().backward()
        results.append([output.cpu(), *(parameter.grad.cpu() for parameter in model.parameters())])
    assert all(map(torch.equal, *results))


def test_a_tensor_that_is_filled_after_autograd_has_saved_it_is_unchanged(kind: str) -> None:
    """As captured programs create the first state of an LSTM, by the operator itself."""
    device = find_device(kind)
    place = device.torch_device()
    weight = torch.ones(3, device=place, requires_grad=True)
    created = torch.ops.aten.ones.default([3], dtype=torch.float32, device=place, pin_memory=False)
    total = (created * weight).sum()
    device.synchronize()
    total.backward()
    assert torch.equal(weight.grad.cpu(), torch.ones(3))
    # What the user changes is still refused.
    result = weight.exp()
    result.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_an_index_by_numbers_is_launched_and_one_by_a_mask_waits(kind: str) -> None:
    device = find_device(kind)
    place = device.torch_device()
    table, rows = torch.arange(12.0).view(4, 3), torch.tensor([3, 0, 3])
    held = table.to(place), rows.to(place)
    a = torch.randn(700, 700, device=place)
    device.synchronize()
    for _ in range(10):
        a = (a @ a) / a.norm()
    before, chosen = device.stamp(), held[0][held[1]]
    assert not device.passed(before)
    assert torch.equal(chosen.cpu(), table[rows])
    assert torch.equal(held[0][(held[1] == 3).nonzero()[:, 0]].cpu(), table[[0, 2]])


def test_a_view_in_place_keeps_the_memory(kind: str) -> None:
    place = find_device(kind).torch_device()
    values = torch.arange(24.0).view(2, 3, 4)
    held, expected = values.to(place), values.clone()
    for one in (held, expected):
        one.transpose_(1, 2).unsqueeze_(0).squeeze_(0)
        one[1].t_().add_(1)
        one.as_strided_((3, 2), (1, 4), 5)
    assert held.stride() == expected.stride()
    assert torch.equal((held * 2).cpu(), expected * 2)
    with pytest.raises(RuntimeError, match="changes the size of its argument, which the emulated device does not"):
        held.resize_(100)


def test_pooling_of_channels_last_gives_the_bits_of_the_cpu(kind: str) -> None:
    results = []
    for place in (torch.device("cpu"), find_device(kind).torch_device()):
        torch.manual_seed(0)
        data = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).to(place).requires_grad_()
        pooled = functional.adaptive_avg_pool2d(data, 1)
        pooled.square().sum().backward()
        assert data.grad is not None
        results.append([pooled.detach().cpu(), data.grad.cpu()])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(
    "scatter",
    [
        lambda a, b: torch.slice_scatter(a, b[:2], 0, 1, 3),
        lambda a, b: torch.select_scatter(a, b[0], 0, 1),
        lambda a, b: torch.diagonal_scatter(a, b[0, :4]),
    ],
    ids=["slice", "select", "diagonal"],
)
def test_zeros_that_a_backward_creates_are_taken_from_the_host(
    kind: str, scatter: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    results = []
    for place in (torch.device("cpu"), find_device(kind).torch_device()):
        torch.manual_seed(0)
        a, b = (torch.randn(4, 5).to(place).requires_grad_() for _ in range(2))
        scatter(a * 2, b * 3).square().sum().backward()
        assert a.grad is not None
        assert b.grad is not None
        results.append([a.grad.cpu(), b.grad.cpu()])
    assert all(map(torch.equal, *results))


class _Mixing(torch.autograd.Function):
    """Multiplies a gradient by numbers of the host."""

    @staticmethod
    def forward(ctx, data: torch.Tensor) -> torch.Tensor:
        return data * 1

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.arange(5.0)


def test_other_tensors_of_the_host_are_refused_in_a_backward_too(kind: str) -> None:
    data = torch.randn(5).to(find_device(kind).torch_device()).requires_grad_()
    with pytest.raises(RuntimeError, match=r"and on the host, of shape \(5,\)"):
        _Mixing.apply(data).sum().backward()


def test_a_launch_returns_before_its_work_is_done(kind: str) -> None:
    device = find_device(kind)
    a = torch.randn(700, 700, device=device.torch_device())
    device.synchronize()
    for _ in range(20):
        a = (a @ a) / a.norm()
    end = device.stamp()
    assert not device.passed(end)
    device.synchronize()
    assert device.passed(end)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: float(x.sum()),
        lambda x: x.sum().item(),
        lambda x: sum(x.tolist()),
        lambda x: float(x.cpu().sum()),
        lambda x: float(x.to("cpu").sum()),
        lambda x: float(torch.zeros(8).copy_(x).sum()),
        lambda x: float(len(x[x > 0])),
        lambda x: 8.0 * bool((x == 1).all()),
    ],
)
def test_a_read_by_the_host_waits(kind: str, read: Callable[[torch.Tensor], float]) -> None:
    place = find_device(kind).torch_device()
    a = torch.eye(500, device=place)
    for _ in range(10):
        a = a @ a
    assert read(a.diagonal()[:8]) == 8.0


def test_an_error_of_a_kernel_shows_at_the_next_wait(kind: str) -> None:
    device = find_device(kind)
    place = device.torch_device()
    table, outside = torch.zeros(4, 2, device=place), torch.tensor([9], device=place)
    functional.embedding(outside, table)
    with pytest.raises(RuntimeError, match="embedding failed on the emulated device: index out of range"):
        device.synchronize()
    device.synchronize()


def test_tensors_of_host_and_device_do_not_mix(kind: str) -> None:
    place = find_device(kind).torch_device()
    with pytest.raises(RuntimeError, match="on the host, of shape"):
        torch.zeros(3, device=place) + torch.zeros(3)
    assert (torch.zeros(3, device=place) + torch.tensor(2.0)).tolist() == [2.0] * 3


def test_memory_of_a_budget_is_enforced_and_counted(kind: str) -> None:
    device = find_device(kind)
    place = device.torch_device()
    device.memory_use()
    before, _ = device.memory_use()
    held = torch.zeros(2**18, device=place)
    now, peak = device.memory_use()
    assert now - before == 2**20
    assert peak >= now
    device.limit_memory(now)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="emulated device out of memory: 29360128 bytes"):
            torch.zeros(7 * 2**20, device=place)  # a size of which no block is free
    finally:
        device.limit_memory(None)
    del held
    assert device.memory_use()[0] == before
