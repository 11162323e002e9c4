"""Stages as CUDA graphs train as stages without them."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from deeppool.collectives.layout import Layout
from deeppool.device.cuda import cuda_problem
from deeppool.device.protocol import Precision
from deeppool.execution import cuda_graphs
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.training.training_job import Training
from tests.execution.training_rank import Model, Rule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_problem() is not None, reason=f"needs a CUDA device: {cuda_problem()}"),
]
RULE = Rule("graphed", batch_norm=True, dtype=torch.float32)


def train(precision: Precision) -> tuple[list[float], dict[str, torch.Tensor], Trainer]:
    """Three updates of a model in two stages."""
    torch.manual_seed(0)
    captured = capture(Model(RULE).cuda(), (3, 6, 6))
    count = len(captured.graph.layers)
    halves = (tuple(range(count // 2)), tuple(range(count // 2, count)))
    stages = [Stage(str(half), half, Layout((0,), RULE.batch)) for half in halves]
    training = Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    trainer = Trainer(captured, stages, ProcessGroup(), training, precision)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        batch = torch.randn(RULE.batch, 3, 6, 6, generator=generator).cuda()
        targets = torch.randint(10, (RULE.batch,), generator=generator).cuda()
        losses.append(trainer.iterate([lambda shard, b=batch, t=targets: (b, t)]))
    return losses, {name: value.cpu() for name, value in captured.source.state_dict().items()}, trainer


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cuda_graphs_leave_the_training_unchanged(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("nccl", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    try:
        losses, state, trainer = train(precision)
        assert not any(hasattr(forward, "func") for forward in trainer._forwards), "a stage was not captured"
        monkeypatch.setattr(cuda_graphs, "UNCAPTURABLE", (nn.Module,))
        eager_losses, eager_state, _ = train(precision)
    finally:
        dist.destroy_process_group()
    tolerance = {"fp32": 1e-5, "bf16": 2e-2}[precision]
    assert losses == pytest.approx(eager_losses, rel=tolerance)
    for name, value in eager_state.items():
        torch.testing.assert_close(state[name], value, rtol=tolerance, atol=tolerance)
