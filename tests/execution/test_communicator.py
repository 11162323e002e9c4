"""Communicator of a training on a single rank."""

import pytest
import torch
import torch.distributed as dist

from deeppool.collectives.layout import Layout
from deeppool.execution.communicator import SingleRank
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from tests.execution.test_same_training import one_process
from tests.execution.training_rank import SHAPE, UPDATES, Rule, make_batch, make_model, names_of, training

RULE = Rule("alone", batch_norm=True, clip_norm=0.05, schedule=True, overlap_sync=True)


def test_a_single_rank_trains_as_plain_torch_without_a_process_group() -> None:
    captured = capture(make_model(RULE), SHAPE, input_dtype=RULE.dtype)
    stages = [Stage(str(index), (index,), Layout((0,), RULE.batch)) for index in range(len(captured.graph.layers))]
    trainer = Trainer(captured, stages, SingleRank(), training(RULE), overlap_sync=True)
    losses = []
    for update in range(UPDATES):
        inputs, targets = make_batch(RULE, update)
        losses.append(trainer.iterate([lambda shard, x=inputs, y=targets: (x, y)]))
    trainer.close()
    assert not dist.is_initialized()

    model, expected = one_process(RULE)
    assert losses == pytest.approx(expected, rel=1e-10)
    for stage in stages:
        for name in names_of(captured, stage):
            torch.testing.assert_close(
                captured.source.state_dict()[name], model.state_dict()[name], rtol=1e-10, atol=1e-12
            )


def test_a_stage_of_other_ranks_is_refused() -> None:
    captured = capture(make_model(RULE), SHAPE, input_dtype=RULE.dtype)
    layers = tuple(range(len(captured.graph.layers)))
    with pytest.raises(ValueError, match=r"there are no ranks \[0, 1\]"):
        Trainer(captured, [Stage("all", layers, Layout((0, 1), RULE.batch))], SingleRank(), training(RULE))
