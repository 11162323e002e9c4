"""Losses of one's own: taken if shards of a batch, weighted by their samples, have the gradients of one process."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import deeppool as dp
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.execution.training_task import user_task
from deeppool.graph.capture import appended_loss
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.coverage import coverage
from deeppool.graph.capture.losses import token_loss
from deeppool.training.synthetic_task import SyntheticTask

CPU = torch.device("cpu")
WEIGHTS = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)
TOKENS = (5,)


class Tokens(nn.Module):
    """Scores of four classes for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


def image(classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Conv2d(3, classes, 3, padding=1), (3, 6, 6)


def vector(classes: int, *more: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(8, classes), *more), (8,)


def mean_of_samples(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    each = functional.cross_entropy(scores.transpose(1, 2), target, reduction="none")
    return (each.sum(1) / (target != -100).sum(1).clamp(min=1)).mean()


def mean_of_tokens(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    each = functional.cross_entropy(scores.transpose(1, 2), target, reduction="none")
    return each.sum() / (target != -100).sum()


def masked(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Multi-label with -1 where a label is missing."""
    known = (target >= 0).to(scores.dtype)
    return (functional.binary_cross_entropy_with_logits(scores, target, reduction="none") * known).sum() / known.sum()


def mean_where(known: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Mean over the labels that are known, of all samples together."""

    def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = known(target)
        return torch.where(mask, (scores - target.nan_to_num()) ** 2, 0).sum() / mask.sum().clamp(min=1)

    return loss


def one_of(*choices: float):
    return lambda count: torch.tensor(choices, dtype=torch.float64)[torch.randint(len(choices), (count, 3))]


def in_batch_negatives(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores @ target.T, torch.arange(scores.shape[0]))


def numbers(*shape: int):
    return lambda count: torch.rand(count, *shape, dtype=torch.float64)


def labels(*shape: int):
    return lambda count: torch.randint(4, (count, *shape))


def padded(count: int) -> torch.Tensor:
    found = torch.randint(4, (count, *TOKENS))
    found[0, 1:] = -100
    return found


MEANS = {
    "vector": (vector(3), functional.mse_loss, numbers(3)),
    "multi-label": (vector(3), functional.binary_cross_entropy_with_logits, numbers(3)),
    "weights of labels": (vector(4), nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), numbers(4)),
    "probabilities": (vector(3, nn.Sigmoid()), functional.binary_cross_entropy, numbers(3)),
    "one number": (vector(1), functional.mse_loss, numbers(1)),
    "squeezed": (vector(1), lambda scores, target: functional.l1_loss(scores.squeeze(1), target), numbers()),
    "flat": (vector(1, nn.Flatten(0)), lambda scores, target: ((scores - target) ** 2).mean(), numbers()),
    "classes": (
        vector(4),
        lambda scores, target: functional.cross_entropy(scores, target, label_smoothing=0.1),
        labels(),
    ),
    "log likelihood": (vector(4, nn.LogSoftmax(1)), nn.NLLLoss(), labels()),
    "margins": (vector(4), functional.multi_margin_loss, labels()),
    "gathered": (vector(4), lambda scores, target: -scores.gather(1, target[:, None]).mean(), labels()),
    "segmentation": (image(4), functional.cross_entropy, labels(6, 6)),
    "images": (image(3), functional.smooth_l1_loss, numbers(3, 6, 6)),
    "tokens": ((Tokens(), TOKENS), token_loss, labels(*TOKENS)),
    "transposed tokens": (
        (Tokens(), TOKENS),
        lambda s, t: functional.cross_entropy(s.transpose(1, 2), t),
        labels(*TOKENS),
    ),
    "ignored tokens": ((Tokens(), TOKENS), mean_of_samples, padded),
}
SUM = r"it is their sum: use reduction=\"mean\""
WEIGHED = "a cross-entropy with weight= or ignore_index= is over the weights"
PAIRS = "each sample must count the same: take the mean of each, then of all"
OTHERS = {
    "sum": (vector(3), nn.MSELoss(reduction="sum"), numbers(3), SUM),
    "sum of classes": (vector(4), nn.CrossEntropyLoss(reduction="sum"), labels(), SUM),
    "fixed batch": (vector(3), lambda s, t: functional.mse_loss(s, t, reduction="sum") / 24, numbers(3), SUM),
    "sum of tokens": ((Tokens(), TOKENS), lambda s, t: token_loss(s, t) * s.shape[0], labels(*TOKENS), SUM),
    "weights of classes": (vector(4), nn.CrossEntropyLoss(WEIGHTS), labels(), WEIGHED),
    "weights of pixels": (image(4), nn.CrossEntropyLoss(WEIGHTS), labels(6, 6), WEIGHED),
    "padding": (
        (Tokens(), TOKENS),
        lambda s, t: functional.cross_entropy(s.mT, t, ignore_index=0),
        labels(*TOKENS),
        WEIGHED,
    ),
    "border": (image(4), nn.CrossEntropyLoss(ignore_index=3), labels(6, 6), WEIGHED),
    "mean of tokens": ((Tokens(), TOKENS), mean_of_tokens, padded, PAIRS),
    "missing labels": (vector(3), masked, lambda count: torch.randint(-1, 2, (count, 3)).double(), PAIRS),
    # Comparisons with one number are not all by which a loss finds what is missing.
    "missing as false": (vector(3), mean_where(torch.Tensor.bool), one_of(0, 1, 2), PAIRS),
    "missing as not a number": (vector(3), mean_where(torch.isfinite), one_of(torch.nan, 1, 2), PAIRS),
    "missing as a constant": (vector(3), mean_where(lambda t: t.ne(torch.tensor(7.0))), one_of(7, 1, 2), PAIRS),
    "missing above a bound": (vector(3), mean_where(lambda t: t <= 100), one_of(255, 1, 2), PAIRS),
    "missing out of a range": (vector(3), mean_where(lambda t: (t > 0.2) & (t < 0.8)), numbers(3), PAIRS),
    "negatives": (vector(3), in_batch_negatives, numbers(3), PAIRS),
    "spread": (vector(3), lambda s, t: functional.mse_loss(s, t) + s.std(0).mean(), numbers(3), PAIRS),
}
ALIKE = {
    *("flat", "log likelihood", "margins", "images", "transposed tokens", "sum of classes", "border", "fixed batch"),
    *("missing above a bound", "missing as a constant"),
}
"""Those of which the others are examples enough."""


def data(shape: tuple[int, ...], count: int) -> torch.Tensor:
    return torch.randint(9, (count, *shape)) if shape == TOKENS else torch.randn(count, *shape, dtype=torch.float64)


def gradients(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])


def gradients_of_shards(compute, model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    shards = ((slice(0, 4), 4 / 6), (slice(4, 6), 2 / 6))
    return sum(share * gradients(compute(x[part], target[part]), model) for part, share in shards)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.stress] * (case in ALIKE)) for case in (*MEANS, *OTHERS)]
)
def test_a_loss_is_taken_if_two_shards_have_its_gradients_and_refused_otherwise(case: str) -> None:
    (model, shape), loss, targets, *refusal = (MEANS | OTHERS)[case]
    model.double()
    torch.manual_seed(1)
    x, target = data(shape, 6), targets(6)
    expected = gradients(loss(model(x), target), model)
    of_shards = gradients_of_shards(lambda x, target: loss(model(x), target), model, x, target)
    assert torch.allclose(of_shards, expected, rtol=1e-9) == (not refusal)

    dtype = torch.int64 if shape == TOKENS else torch.float64
    if refusal:
        with pytest.raises(CaptureError, match=f"the loss of .* is no mean over the samples: .*{refusal[0]}"):
            capture(model, shape, input_dtype=dtype, loss=loss)
        return
    captured = capture(model, shape, input_dtype=dtype, loss=loss)
    *_, found = (node.meta["val"] for node in captured.program.graph.nodes if node.op == "placeholder")
    assert (tuple(found.shape[1:]), found.dtype) == (tuple(target.shape[1:]), target.dtype)
    assert torch.allclose(gradients_of_shards(captured.program, model, x, target), expected, rtol=1e-9)


class TwoHeads(nn.Module):
    """Scores of a head halfway, before those of the whole model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.stem, self.early, self.trunk, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.name = name

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.stem(x).relu()
        return {"early": self.early(x), self.name: self.head(self.trunk(x).relu())}


def test_the_default_loss_takes_the_logits_of_a_mapping_and_what_no_gradient_reaches_is_said() -> None:
    """A model of outputs of which the first is an auxiliary one was planned without most of its layers, in silence."""
    whole = dp.estimate(capture(TwoHeads("logits"), (4,)), gpu="l4", batch_sizes=[1])
    assert {"trunk", "head"} <= {layer.name for layer in whole.graph.layers}
    half = dp.estimate(capture(TwoHeads("main"), (4,)), gpu="l4", batch_sizes=[1])
    linear = 4 * (4 * 4 + 4)
    for found, unread in ((whole, linear), (half, 2 * linear)):
        advice = dp.advise(found, 1, 1)
        for sentence in (*found.caveats(), *advice.plan.caveats):
            assert sentence.startswith(f"no gradient reaches {unread} B of the {4 * linear} B of parameters: ")
        assert f"\nCaution: {found.caveats()[0]}\n" in advice.explain()


@pytest.mark.parametrize("kind", ["classes", "pixels", "tokens", "double"])
def test_the_default_loss_is_appended_as_an_export_of_it_would_be(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"classes": vector(4), "pixels": image(4), "tokens": (Tokens(), TOKENS), "double": vector(4)}
    model, shape = cases[kind]
    dtype = torch.int64 if kind == "tokens" else torch.float64 if kind == "double" else torch.float32
    model.to(torch.float64 if kind == "double" else torch.float32)

    def found() -> tuple:
        captured = capture(model, shape, input_dtype=dtype, granularity="operator")
        values = [(node.name, str(node.meta.get("val"))) for node in captured.program.graph.nodes]
        return captured.graph, captured.batch_symbols, captured.program.code, values

    appended = found()
    monkeypatch.setattr(appended_loss, "_are_scores", lambda value: False)
    # Signatures of layers name the symbols in their shapes.
    assert appended == found()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "loss", "target", "message"),
    [
        (vector(3)[0], nn.MSELoss(reduction="none"), None, r"has shape \(batch, 3\), expected one number"),
        (
            vector(3)[0],
            functional.cross_entropy,
            torch.zeros(2),
            r"cannot take the outputs of Sequential, of shape \(batch, 3\) and a target of shape \(batch, 2\), "
            r"torch.float32: .*\(give loss=, a function of outputs and target\)",
        ),
        # Differences of every score and every target.
        (vector(1)[0], functional.mse_loss, torch.tensor(0.0), r"a target of shape \(batch,\), .*Using a target size"),
        (vector(1)[0], lambda s, t: ((s - t) ** 2).mean(), torch.tensor(0.0), "is no mean over the samples"),
        (
            vector(3)[0],
            lambda s, t: functional.mse_loss(s, t).log() * torch.nan,
            None,
            "no value for random .* of float32, .*: it is not finite",
        ),
        (
            vector(3)[0],
            lambda s, t: functional.mse_loss(s, t[:, :2]),
            None,
            r"give loss=, .* and target=, the target of one",
        ),
        # torch's text was only the operator's name.
        (
            vector(3)[0],
            lambda s, t: functional.ctc_loss(
                s.log_softmax(-1)[None], t[:, None], torch.ones_like(t), torch.ones_like(t)
            ),
            torch.tensor(1),
            "DynamicOutputShapeException: aten._ctc_loss",
        ),
        (
            vector(4)[0],
            lambda s, t: functional.mse_loss(s, t) * len(s),
            None,
            r"fixes the number of samples .*use target.shape",
        ),
    ],
)
def test_other_losses_and_targets_are_refused(model, loss, target, message) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(model, (8,), loss=loss, target=target)


class WithLoss(nn.Module):
    """Returns its own loss beside the scores, as models of transformers do when they get labels."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.head(x)
        return {"loss": scores.square().mean(), "logits": scores}


@pytest.mark.parametrize("loss", [lambda outputs, _: outputs["loss"], lambda outputs, _: outputs["loss"] / 2])
def test_a_loss_that_the_model_computed_itself_is_refused_with_what_a_loss_gets(loss) -> None:
    # The first one was an AttributeError of NoneType.
    with pytest.raises(CaptureError, match=r"None.*a loss gets None for outputs without a row per sample, such as"):
        capture(WithLoss(), (8,), loss=loss)


class Views(nn.Module):
    """Two rows for each sample, after its scores or instead of them."""

    def __init__(self, scores: bool) -> None:
        super().__init__()
        self.scores, self.head = scores, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        views = torch.cat([self.head(x), self.head(-x)])
        return (self.head(x), views) if self.scores else views


def test_several_rows_for_each_sample_are_refused() -> None:
    # The first one was an error of torch's own, as the rows are more than targets.
    refused = pytest.raises(CaptureError, match=r"but one of shape \(2\*batch, 3\), .* row per sample: flatten them in")
    for loss in (None, functional.cross_entropy):
        with refused:
            capture(Views(scores=False), (8,), loss=loss)
    # Of the rows the loss was the sum over the samples, not the mean over the rows.
    with pytest.raises(CaptureError, match=r"None.*a loss gets None for outputs without a row per sample"):
        capture(Views(scores=True), (8,), loss=lambda outputs, _: outputs[1].square().sum() / outputs[1].shape[0])


def test_a_loss_that_reads_parameters_is_refused_because_no_layer_trains_them() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return functional.mse_loss(self.scale * scores, target)

    model = nn.Linear(8, 3)
    for loss in (Scaled(), lambda s, t: functional.mse_loss(s, t) + model.weight.square().sum()):
        with pytest.raises(
            CaptureError, match=r"the loss of Linear reads a parameter of shape \((3|3, 8),?\), to which"
        ):
            capture(model, (8,), loss=loss)


def test_one_class_is_warned_about_because_its_cross_entropy_is_zero() -> None:
    model, shape = image(1)
    captured = capture(model, shape)
    assert captured.program(torch.randn(2, *shape), torch.zeros(2, 6, 6, dtype=torch.int64)) == 0
    assert any("the scores have one class" in warning for warning in coverage(captured).warnings)
    for classes, loss in ((2, None), (1, functional.binary_cross_entropy_with_logits)):
        other = capture(image(classes)[0], shape, loss=loss)
        assert not any("one class" in warning for warning in coverage(other).warnings)


def test_synthetic_targets_of_numbers_can_be_learned_from_the_inputs() -> None:
    task = SyntheticTask(capture(vector(3)[0], (8,), loss=functional.mse_loss), 50, seed=0)
    inputs, targets = task.tensors
    assert (targets.shape, targets.dtype) == ((200, 3), torch.float32)
    constant = torch.linalg.lstsq(torch.ones(200, 1), targets).solution
    linear = torch.linalg.lstsq(torch.cat([inputs, torch.ones(200, 1)], 1), targets).solution
    errors = (targets - constant).norm(), (targets - torch.cat([inputs, torch.ones(200, 1)], 1) @ linear).norm()
    assert errors[1] < 0.7 * errors[0]


# -- the targets of a dataset -----------------------------------------------------------------------


def make_job(targets: torch.Tensor | list[float], loss=None, model: nn.Module | None = None, **settings):
    inputs = torch.randint(9, (len(targets), *TOKENS)) if isinstance(model, Tokens) else torch.randn(len(targets), 8)
    settings = {"input_shape": inputs.shape[1:], "input_dtype": inputs.dtype} | settings
    return dp.TrainingJob(
        model=model or vector(4)[0],
        dataset=lambda: list(zip(inputs, targets, strict=True)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        **settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (torch.rand(6, 4), functional.mse_loss),
        (torch.rand(6, 4).double(), functional.mse_loss),
        # Of two forms that the loss takes the dataset has the less usual one.
        (torch.rand(6, 4).softmax(1), functional.cross_entropy),
        ([0.5] * 6, lambda scores, target: functional.mse_loss(scores.mean(1), target)),
    ],
)
def test_a_job_is_captured_for_the_targets_of_its_dataset(targets, loss) -> None:
    job = make_job(targets, loss)
    task = user_task(job, 6, CPU)
    assert task.captured.graph == job.capture().graph
    inputs, target = task.samples(0, range(6))
    assert torch.equal(task.captured.program(inputs, target), loss(job.model(inputs), target))


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        (
            torch.rand(6, 4),
            {},
            r"has shape \(4,\) and float32 as target, the loss of Sequential was captured for shape \(\) and int64 ",
        ),
        (torch.zeros(6, dtype=torch.int32), {}, r"has shape \(\) and int32 as target, .* shape \(\) and int64"),
        (
            torch.zeros(6, dtype=torch.int64),
            {"input_shape": (2, 8)},
            r"has shape \(8,\) and float32 as .*, Sequential was captured for shape \(2, 8\) and float32",
        ),
        (torch.zeros(6, dtype=torch.int64), {"input_dtype": torch.float64}, "was captured for .* float64"),
        (
            torch.zeros(6, dtype=torch.int64),
            {"dataset": lambda: TensorDataset(torch.zeros(6, 8), torch.zeros(6, 8), torch.zeros(6))},
            "items have 3 parts",
        ),
    ],
)
def test_samples_that_do_not_fit_are_refused_with_both_shapes(targets, settings, message) -> None:
    double = settings.get("input_dtype") is torch.float64
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(4, dtype=torch.float64 if double else None))
    model(torch.zeros(1, *settings.get("input_shape", (8,)), dtype=torch.float64 if double else None))
    if "dataset" in settings:
        job = make_job(targets, model=model)
        job = dp.TrainingJob(**{**vars(job), **settings})
    else:
        job = make_job(targets, model=model, **settings)
    with pytest.raises(InvalidValueError, match=message):
        user_task(job, 6, CPU).samples(0, range(6))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            (torch.zeros(6, 8), torch.zeros(6, 2), torch.zeros(6, 4)),
            "have 3 parts, Sequential takes 1 and a target",
        ),
        (
            (torch.zeros(6, 9), torch.zeros(6, 4)),
            r"has shape \(9,\) and float32 as .*, .* captured for shape \(8,\) and",
        ),
    ],
)
def test_items_that_do_not_fit_are_refused_before_a_plan_is_made_with_them(items, message: str) -> None:
    job = dataclasses.replace(make_job(torch.rand(6, 4), functional.mse_loss), dataset=lambda: TensorDataset(*items))
    with pytest.raises(InvalidValueError, match=message):
        job.capture()


@pytest.mark.parametrize(
    ("make_item", "kind"),
    [
        (lambda image: image, "Tensor"),
        (lambda image: {"image": image, "label": 0}, "dict"),
        (lambda image: (image, "cat"), "tuple of Tensor, str"),
    ],
)
def test_a_dataset_of_other_items_than_tuples_with_a_target_is_refused(make_item, kind: str) -> None:
    job = make_job(torch.rand(6), functional.mse_loss)
    job = dataclasses.replace(job, dataset=lambda: [make_item(image) for image in torch.rand(6, 8)])
    phrase = f"the dataset's first item is a {kind}, expected a tuple of each input and a target"
    with pytest.raises(InvalidValueError, match=phrase):
        job.capture()
    with pytest.raises(InvalidValueError, match=phrase):
        user_task(dataclasses.replace(job, loss=None), 6, CPU).samples(0, range(6))


def test_ignored_tokens_are_refused_where_shards_would_weigh_them_wrongly() -> None:
    torch.manual_seed(2)
    targets = padded(6)
    model = Tokens()
    x = torch.randint(9, (6, *TOKENS))
    whole = gradients(token_loss(model(x), targets), model)
    assert not torch.allclose(gradients_of_shards(lambda x, t: token_loss(model(x), t), model, x, targets), whole)

    def ignored(loss, *shards: range) -> int:
        task = user_task(make_job(targets, loss, model), 6, CPU)
        return sum(int((task.samples(0, shard)[1] == -100).sum()) for shard in shards)

    assert ignored(None, range(6)) == 4
    with pytest.raises(InvalidValueError, match=r"targets of the dataset are -100, .*mean of each sample and then"):
        ignored(None, range(4), range(4, 6))
    assert ignored(mean_of_samples, range(4), range(4, 6)) == 4
