"""Graphs of real models from capture to plan: their series-parallel structure, irregular regions and optimality.

Only the graphs are real: layer times are drawn, one per distinct layer, so no plan here says anything of a device.
GPT-2 and BERT need the extra ``transformers`` and are skipped without it.
"""

import random
from dataclasses import dataclass

import pytest
import torch
import torchvision
from torch import nn

from deeppool.cluster.cluster import Cluster
from deeppool.graph.capture.capture import capture
from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, decompose, parts_of
from deeppool.planning import assembly
from deeppool.simulation.plan.simulate import simulate
from examples.u_net import u_net
from tests.planning.random_problems import BATCH_SIZES, random_measurement
from tests.planning.search.test_random_graphs import check_baselines, check_clock, check_gpus, check_limit, factor
from tests.planning.searched import plan
from tests.strategies import make_profile

LIMITS = (None, 1.0, 1.5, 4.0)


class NestedBranches(nn.Module):
    """A branch that forks again inside, beside one that forks and meets only at the end."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 8, 3, padding=1)
        self.left_fine, self.left_coarse = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.left_end = nn.Conv2d(16, 8, 1)
        self.right = nn.Conv2d(8, 8, 5, padding=2)
        self.right_fine, self.right_coarse = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, images):
        seen = self.stem(images)
        left = self.left(seen)
        left = self.left_end(torch.cat([self.left_fine(left), self.left_coarse(left)], 1))
        right = self.right(seen)
        both = torch.cat([left, self.right_fine(right), self.right_coarse(right)], 1)
        return self.head(both.mean(dim=(2, 3)))


class NextToken(nn.Module):
    """A language model as a classifier of every position: classes come second, as in segmentation."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits.transpose(1, 2)


def gpt2():
    transformers = pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    config = transformers.GPT2Config(
        n_layer=3, n_head=2, n_embd=32, vocab_size=64, n_positions=16, use_cache=False,
        bos_token_id=0, eos_token_id=0, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    return NextToken(transformers.GPT2LMHeadModel(config).train())


def bert_config(transformers):
    return transformers.BertConfig(
        num_hidden_layers=3, num_attention_heads=2, hidden_size=32, intermediate_size=64, vocab_size=64,
        max_position_embeddings=16, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def bert():
    """Language model whose outputs are a record of the library, with ``logits``."""
    transformers = pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    return transformers.BertForSequenceClassification(bert_config(transformers)).train()


def bert_for_tokens():
    transformers = pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    return NextToken(transformers.BertForMaskedLM(bert_config(transformers)).train())


@dataclass(frozen=True)
class Case:
    """A model, one sample of it, and what its graph is made of."""

    build: object
    input_shape: tuple[int, ...]
    region_sizes: tuple[int, ...] = ()
    """Number of layers of each region that is not series-parallel."""
    deepest: int = 1
    """Depth of nested blocks."""
    tokens: bool = False


CASES = {
    "nested branches": Case(NestedBranches, (3, 16, 16), deepest=2),
    # The blocks of its levels lie one in the other.
    "U-Net": Case(u_net, (3, 32, 32), deepest=3),
    # Queries, keys and values are branches, beside the residual connection.
    "GPT-2": Case(gpt2, (16,), deepest=2, tokens=True),
    "BERT": Case(bert, (16,), deepest=2, tokens=True),
    "BERT of every word": Case(bert_for_tokens, (16,), deepest=2, tokens=True),
    # Four dense blocks of 6, 12, 24 and 16 times a concatenation and two convolutions.
    "DenseNet-121": Case(torchvision.models.densenet121, (3, 32, 32), (18, 36, 72, 48), deepest=0),
}


@pytest.fixture(scope="module", params=CASES)
def example(request):
    """(case, model, captured model)"""
    case = CASES[request.param]
    torch.manual_seed(0)
    model = case.build()
    return case, model, capture(model, case.input_shape, input_dtype=torch.int64 if case.tokens else torch.float32)


def depth(part) -> int:
    """Depth of nested blocks."""
    inner = (
        part.branches
        if isinstance(part, ParallelBlock)
        else ()
        if isinstance(part, NonSeriesParallel)
        else (*part.blocks, part.tail)
    )
    return isinstance(part, ParallelBlock) + max((depth(other) for other in inner if other is not None), default=0)


@pytest.mark.slow
def test_the_graph_of_a_real_model_has_the_structure_of_its_architecture(example):
    case, _, captured = example
    tree = decompose([layer.predecessors for layer in captured.graph.layers])
    assert (
        tuple(len(part.layers) for part in parts_of(tree) if isinstance(part, NonSeriesParallel)) == case.region_sizes
    )
    assert depth(tree) == case.deepest


@pytest.mark.slow
def test_captured_real_model_computes_its_own_loss(example):
    case, model, captured = example
    generator = torch.Generator().manual_seed(0)
    shape = (5, *case.input_shape)
    batch = torch.randint(64, shape, generator=generator) if case.tokens else torch.randn(shape, generator=generator)
    scores = model(batch)
    scores = getattr(scores, "logits", scores)
    target = torch.randint(10, (5, *scores.shape[2:]), generator=generator)
    torch.testing.assert_close(captured.program(batch, target), nn.functional.cross_entropy(scores, target))


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [8, 24])
def test_the_plan_of_a_real_graph_keeps_its_limit_and_its_bound(example, gpus, monkeypatch):
    monkeypatch.setattr(assembly, "alternative_costs", lambda *_: ())
    case, _, captured = example
    rng = random.Random(0)
    signatures = dict.fromkeys(layer.signature for layer in captured.graph.layers)
    profile = make_profile(captured.graph, [random_measurement(rng, name) for name in signatures], BATCH_SIZES)
    for limit in LIMITS:
        made = plan(profile, Cluster(gpus), 96, limit)
        result = simulate(made)
        check_limit(made, result)
        check_gpus(made, result)
        check_clock(made, result)
        check_baselines(made, made.data_parallel_iteration_time)
        if not case.region_sizes:
            assert made.optimality == "exact"
        assert factor(made) < 3
