"""What a forward does beside computing values: it is captured as torch runs it, or refused in one line."""

import copy
import logging
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import deeppool as dp
from deeppool.errors import CaptureError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.coverage import coverage
from deeppool.graph.layer import Granularity
from tests.graph.capture.test_capture import run_by_segments

Forward = Callable[["Model", torch.Tensor], torch.Tensor]


class Model(nn.Module):
    """Two layers for a function to use, and a head."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.run = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(self, x))


def check_training(
    model: nn.Module, batches: tuple[int, ...] = (5, 8, 3), granularity: Granularity = "module"
) -> CapturedModel:
    """Captures a model and checks that its program trains as the model itself."""
    own = copy.deepcopy(model)
    captured = dp.capture(model, (8,), granularity=granularity)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (own, captured.source)]
    for batch in batches:
        x, target = torch.randn(batch, 8), torch.randint(4, (batch,))
        losses = functional.cross_entropy(own(x.clone()), target), captured.program(x.clone(), target)
        torch.testing.assert_close(*losses)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        states = ({k: v for k, v in x.state_dict().items() if "num" not in k} for x in (captured.source, own))
        torch.testing.assert_close(*states)
    return captured


def check_segments(captured: CapturedModel) -> None:
    """Checks that layers run one by one give the loss and the statistics of the whole program."""
    x, target = torch.randn(6, 8), torch.randint(4, (6,))
    state = captured.source.state_dict()
    before = {key: value.clone() for key, value in state.items()}
    loss = captured.program(x, target)
    expected = {key: value.clone() for key, value in state.items()}
    captured.source.load_state_dict(before)
    torch.testing.assert_close(run_by_segments(captured, range(1, len(captured.nodes)), x, target)[0], loss)
    torch.testing.assert_close(dict(state), expected)


# -- operators that are not torch's own ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["double", "relu_"])
def test_an_operator_of_other_code_that_writes_an_argument_is_refused(name: str) -> None:
    def double(x: torch.Tensor) -> None:
        x.mul_(2)

    def doubling(model: Model, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        operator(y)
        return model.first(y)

    # One has the name of an operator of torch's own, which does something else.
    operator = torch.library.custom_op(f"deeppool_tests::{name}", double, mutates_args=("x",))
    with pytest.raises(CaptureError, match=rf"runs deeppool_tests\.{name}\.default, .* writes an argument"):
        dp.capture(Model(doubling), (8,))


# -- memory that is written and read by several views -------------------------------------------------


def view_of_the_input(model: Model, x: torch.Tensor) -> torch.Tensor:
    x.view(-1).mul_(2)
    return model.first(x)


def half_of_the_input(model: Model, x: torch.Tensor) -> torch.Tensor:
    x.chunk(2, 1)[0].mul_(2)
    return model.first(x)


def half_without_gradient(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x).detach()
    y.split(4, 1)[1].mul_(2)
    return model.second(y)


def overlapping_parts(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    left = y[:, :4]
    left.mul_(2)
    y[:, 2:6].mul_(2)
    return torch.cat([left, y[:, 4:]], 1)


@pytest.mark.parametrize(
    "forward",
    [view_of_the_input, half_of_the_input, half_without_gradient, overlapping_parts],
)
def test_memory_that_is_written_by_one_view_and_read_by_another_is_refused(forward: Forward) -> None:
    with pytest.raises(CaptureError, match="in place and reads the same memory by another view"):
        dp.capture(Model(forward), (8,))


def test_a_write_to_what_a_dropout_of_nothing_returns_is_refused_or_seen_by_all_readers() -> None:
    def dropout_of_nothing(model: Model, x: torch.Tensor) -> torch.Tensor:
        y = model.first(x)
        # It returns y itself.
        return y + functional.relu_(functional.dropout(y, 0.0))

    try:
        # torch.export of torch 2.14 reads what was written.
        check_training(Model(dropout_of_nothing))
    except CaptureError as error:
        assert "in place and reads the same memory by another view" in str(error)


def next_one_added(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    y[:, 1:] += y[:, :-1]
    return y


def shifted(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    y[:, 1:] = y[:, :-1]
    return y


def transpose_added(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x).view(-1, 2, 4)[:, :, :2]
    return torch.cat([y.add_(y.mT).flatten(1), x[:, :4]], 1)


@pytest.mark.parametrize("forward", [next_one_added, shifted, transpose_added])
def test_a_write_of_what_overlaps_it_is_refused(forward: Forward) -> None:
    with pytest.raises(CaptureError, match=r"^Model writes \S+ in place by \S+_ of \S+, which shares a part"):
        dp.capture(Model(forward), (8,))


def dropout_of_some(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    return y + 0 * functional.relu_(functional.dropout(y, 0.5)) + functional.relu_(y.double()).float()


def of_another_type(model: Model, x: torch.Tensor) -> torch.Tensor:
    rounded = x.long()
    rounded += 1
    return model.first(x) * rounded


def parts_in_turn(model: Model, x: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 1
    y = model.first(x).mul_(2)
    z = torch.zeros_like(y)
    for index in range(8):
        z[:, index] = y[:, 7 - index]
        z[:, :index].add_(1)
    return z


def halves_and_the_same(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    y[:, 4:] = y[:, :4]
    y[:, :2] += y[:, :2]
    return y


@pytest.mark.parametrize("forward", [dropout_of_some, of_another_type, parts_in_turn, halves_and_the_same])
def test_memory_that_is_written_by_one_view_and_read_by_that_is_captured(forward: Forward) -> None:
    check_training(Model(forward))


# -- control flow -------------------------------------------------------------------------------------


def large_batch(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) * 2 if x.shape[0] >= 6 else model.first(x)


def even_batch(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) * 2 if x.shape[0] % 2 == 0 else model.first(x)


def batch_of_four(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) * (2 if max(x.shape[0], 4) > 4 else 1)


@pytest.mark.parametrize(
    ("forward", "condition"),
    [(large_batch, "2 <= batch <= 5"), (even_batch, r"Ne\(Mod\(batch, 2\), 0\)"), (batch_of_four, "Max")],
)
def test_another_path_at_another_batch_is_refused(forward: Forward, condition: str) -> None:
    with pytest.raises(CaptureError, match=f"^Model computes otherwise unless {condition}"):
        dp.capture(Model(forward), (8,))


def test_another_loss_at_another_batch_is_refused() -> None:
    with pytest.raises(CaptureError, match="of Linear computes otherwise unless 2 <= batch"):
        dp.capture(
            nn.Linear(8, 4), (8,), loss=lambda x, y: functional.cross_entropy(x, y) * (2 if y.shape[0] > 15 else 1)
        )


def distances(model: Model, x: torch.Tensor) -> torch.Tensor:
    """torch computes them by another kernel for more than 25 samples, with the same result."""
    return torch.cdist(model.first(x), model.second.weight)


def test_a_path_of_torchs_own_with_the_same_result_is_captured() -> None:
    check_training(Model(distances), (5, 30))
    dp.capture(nn.Linear(8, 4), (8,), loss=lambda x, y: functional.cross_entropy(torch.cdist(x, torch.eye(4)), y))


# -- values that modules hold -------------------------------------------------------------------------


def holding(**values: object) -> nn.Module:
    """Returns a model with values of its own, of which a forward uses what its name says."""
    (name,) = values
    model = Model(globals()[f"{name}_used"])
    vars(model).update(values)
    return model


def calls_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return model.first(x) * min(1.0, model.calls / 4)


def later_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.later += 1
    return model.first(x) if model.later < 500 else model.second(x)


def seen_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.seen.append(1)
    return model.first(x) * len(model.seen)


def found_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    scale = model.found.setdefault("scale", 1.0)
    model.found["scale"] = scale / 2
    return model.first(x) * scale


def mean_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x) - model.mean
    model.mean = model.mean * 0.5 + 0.5 * model.first.bias.detach()
    return y


def count_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.count += 1
    return model.first(x) * model.count


@dataclass
class Counted:
    calls: int = 0


def steps_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.steps["of"][0] += 1
    return model.first(x) if model.steps["of"][0] < 500 else model.second(x)


def counted_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.counted.calls += 1
    return model.first(x) if model.counted.calls < 500 else model.second(x)


def latest_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.latest[0].append(1)
    return model.first(x) * len(model.latest[0])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"steps": {"of": [0]}}, r"steps\['of'\]"),
        ({"counted": Counted()}, r"counted\.calls"),
        ({"counted": SimpleNamespace(calls=0)}, r"counted\.calls"),
        ({"latest": (deque(maxlen=9),)}, r"latest\[0\]"),
    ],
    ids=["list in a dict", "object", "namespace", "queue in a tuple"],
)
def test_a_value_deep_within_what_a_module_holds_is_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(CaptureError, match=f"each time it runs, as its forward changes {named}:"):
        dp.capture(holding(**values), (8,))


@pytest.mark.parametrize(
    "values",
    [
        {"calls": 0},
        {"later": 0},
        {"seen": []},
        {"found": {}},
        {"mean": torch.zeros(8)},
        {"count": torch.zeros(8)},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_value_that_forwards_change_and_read_is_refused(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(
        CaptureError, match=f"computes something else each time it runs, as its forward changes {name}:"
    ):
        dp.capture(holding(**values), (8,))


SEEN: list[int] = []
CALLS = WRITTEN = 0
MASKS: dict[int, torch.Tensor] = {}


def next_call() -> int:
    global CALLS  # noqa: PLW0603  as a user may
    CALLS += 1
    return CALLS


def global_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) if next_call() < 500 else model.second(x)


def list_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return model.first(x) * len(SEEN)


class Shared(Model):
    calls = 0

    def scale(self) -> float:
        Shared.calls += 1
        return min(1.0, Shared.calls / 4)


def shared_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) * model.scale()


def enclosed() -> Forward:
    seen: list[int] = []

    def enclosed_used(model: Model, x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return model.first(x) * len(seen)

    return enclosed_used


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (Model(global_used), ":CALLS"),
        (Model(list_used), ":SEEN"),
        (Shared(shared_used), r":Shared\.calls"),
        (Model(enclosed()), r":enclosed\.<locals>\.enclosed_used\.seen"),
    ],
    ids=["global of a function", "list", "attribute of a class", "list of a closure"],
)
def test_a_variable_outside_of_modules_that_forwards_change_and_read_is_refused(model: Model, named: str) -> None:
    """The graph kept its first value."""
    with pytest.raises(CaptureError, match=f"each time it runs, as its forward changes {__name__}{named}:"):
        dp.capture(model, (8,))
    assert (CALLS, SEEN, Shared.calls) == (0, [], 0)


def mask_by_width(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Keeps a mask that is the same each time, and counts for others."""
    global WRITTEN  # noqa: PLW0603
    WRITTEN += 1
    if x.shape[1] not in MASKS:
        MASKS[x.shape[1]] = torch.ones(x.shape[1])
    return model.first(x) * MASKS[x.shape[1]]


def test_variables_outside_of_modules_that_forwards_only_write_or_cache_are_captured_and_put_back() -> None:
    """The cache kept a tensor of the export, without data."""
    model = Model(mask_by_width)
    dp.capture(model, (8,))
    assert (WRITTEN, MASKS) == (0, {})
    check_training(model)


class Made(OrderedDict[str, type[nn.Module]]):
    """Makes a module for each key it is asked for, as the table of activations of transformers does."""

    def __getitem__(self, key: str) -> nn.Module:
        return super().__getitem__(key)()


ACTIVATIONS = Made(relu=nn.ReLU, linear=nn.Linear)


def activation_by_name(model: Model, x: torch.Tensor) -> torch.Tensor:
    return ACTIVATIONS["relu"](model.first(x))


def test_a_table_that_makes_what_it_is_asked_for_is_asked_for_nothing_else() -> None:
    """``nn.Linear()`` raises."""
    check_training(Model(activation_by_name))


class Lines:
    """A stream that keeps what is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.lines.append(text)

    def flush(self) -> None:
        pass


def logging_calls(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.logger.warning("called")
    return model.first(x)


def test_what_is_no_state_of_a_model_is_not_put_back() -> None:
    """A logger that a module holds leads to all others, and to their streams: lines of the export were lost."""
    model, lines = Model(logging_calls), Lines()
    model.logger = logging.Logger("of a model")
    model.logger.addHandler(logging.StreamHandler(lines))
    dp.capture(model, (8,))
    assert "called\n" in lines.lines


def test_seeds_of_other_threads_are_none_of_the_models() -> None:
    def seeding(model: Model, x: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=torch.manual_seed, args=(0,))
        other.start()
        other.join()
        return model.first(x)

    check_training(Model(seeding))


def without_dropout_in_turn(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.part.train(not model.part.training)
    return model.part(model.first(x))


def momentum_that_falls(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.part.momentum *= 0.5
    return model.part(model.first(x))


@pytest.mark.parametrize(
    ("forward", "part", "named"),
    [
        (without_dropout_in_turn, nn.Dropout(0.5), r"part\.training"),
        (momentum_that_falls, nn.BatchNorm1d(8), r"part\.momentum"),
    ],
)
def test_a_mode_and_a_rule_of_statistics_that_forwards_change_are_refused(
    forward: Forward, part: nn.Module, named: str
) -> None:
    model = Model(forward)
    model.part = part
    with pytest.raises(CaptureError, match=f"as its forward changes {named}:"):
        dp.capture(model, (8,))
    assert model.part.training


def test_features_that_a_hook_keeps_for_the_forward_are_captured() -> None:
    model = Model(lambda own, x: (own.kept.clear(), own.first(x), own.kept[-1].relu())[2])
    model.kept = []
    model.first.register_forward_hook(lambda module, given, found: model.kept.append(found))
    captured = dp.capture(model, (8,))
    x, target = torch.randn(3, 8), torch.randint(4, (3,))
    torch.testing.assert_close(captured.program(x, target), functional.cross_entropy(model(x), target))


def log_used(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Keeps a mask that is the same each time, and what only others read."""
    model.log["calls"][0].calls += 1
    model.log["outputs"].append(x)
    if not hasattr(model, "mask"):
        model.mask = torch.ones(8)
    model.last = model.first(x) * model.mask
    return model.last * 2


def test_a_value_that_forwards_change_and_do_not_read_is_captured_and_put_back() -> None:
    model = holding(log={"calls": [Counted()], "outputs": []})
    captured = dp.capture(model, (8,))
    assert model.log == {"calls": [Counted()], "outputs": []}
    assert not hasattr(model, "last")
    assert not hasattr(model, "mask")
    captured.copy()
    check_training(model)


# -- random numbers -----------------------------------------------------------------------------------


def seeded(model: Model, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return model.first(x) * torch.rand(8)


def twice_the_same(model: Model, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        first = torch.rand(8)
    return model.first(x) * first * torch.rand(8)


def generated(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.first(x) * torch.rand(8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("forward", "error"),
    [
        (seeded, "sets the state of torch's random numbers"),
        (twice_the_same, "sets the state of torch's random numbers"),
        (generated, "draws from a torch.Generator of its own"),
    ],
)
def test_random_numbers_of_a_seed_are_refused(forward: Forward, error: str) -> None:
    with pytest.raises(CaptureError, match=f"^Model {error}"):
        dp.capture(Model(forward), (8,))


@pytest.mark.parametrize("draw", [random.random, lambda: float(torch.manual_seed(0) is None)])
def test_a_loss_that_draws_other_random_numbers_is_refused(draw: Callable[[], float]) -> None:
    with pytest.raises(CaptureError, match=r"^the loss of Linear (draws random numbers of Python|sets the state)"):
        dp.capture(nn.Linear(8, 4), (8,), loss=lambda x, y: functional.cross_entropy(x * (1 + draw()), y))


# -- statistics ---------------------------------------------------------------------------------------


def of_hidden(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    model.norm(model.second(y).relu()).relu()
    return y


def of_data(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.norm(x * 2)
    return model.first(x)


@pytest.mark.parametrize("forward", [of_hidden, of_data])
@pytest.mark.parametrize("granularity", ["operator", "module"])
def test_statistics_of_a_batch_norm_are_updated_where_nothing_reads_its_output(
    forward: Forward, granularity: Granularity
) -> None:
    model = Model(forward)
    model.norm = nn.BatchNorm1d(8)
    captured = check_training(model, granularity=granularity)
    assert set(coverage(captured).unread) == {"second", "norm"}
    check_segments(captured)


def normalised_and_read(model: Model, x: torch.Tensor) -> torch.Tensor:
    before = model.norm.running_mean * 2
    y = model.first(model.norm(x) - before)
    return model.second(y) + model.norm.running_mean * 3


def test_layers_that_read_the_statistics_of_a_batch_norm_are_one_with_it_and_keep_their_order() -> None:
    model = Model(normalised_and_read)
    model.norm = nn.BatchNorm1d(8)
    captured = check_training(model)
    (layer,) = [layer for layer in captured.graph.layers if "batch_norm" in layer.operators]
    assert layer.operators.count("mul") == 2
    check_segments(captured)


# -- gradients ----------------------------------------------------------------------------------------


def written_without_gradient(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = model.first(x)
    with torch.no_grad():
        y[:, :4].mul_(2)
    return y


def test_a_write_that_gradients_do_not_see_is_refused() -> None:
    with pytest.raises(CaptureError, match="linear is written in place under"):
        dp.capture(Model(written_without_gradient), (8,))


def mask_without_gradient(model: Model, x: torch.Tensor) -> torch.Tensor:
    mask = x * 0 + 1
    with torch.no_grad():
        mask.mul_(0.5)
        scale = (model.first.weight * 2).clamp_(min=0)
    return model.first(x) * mask + functional.linear(x, scale)


def test_a_write_without_gradient_of_what_has_none_is_captured() -> None:
    check_training(Model(mask_without_gradient))


def frozen_for_a_while(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.second.requires_grad_(False)
    y = model.second(model.first(x))
    model.second.requires_grad_(True)
    return y


def frozen_for_good(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.second.weight.requires_grad = False
    return model.second(model.first(x))


def of_data_that_is_set(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.mean.data = 0.9 * model.mean + 0.1 * model.first.bias.detach()
    return model.first(x)


@pytest.mark.parametrize(
    ("forward", "attribute"),
    [
        (frozen_for_a_while, r"Tensor\.requires_grad_\(False\)"),
        (frozen_for_good, r"an assignment of Tensor\.requires_grad"),
        (of_data_that_is_set, r"an assignment of Tensor\.data"),
    ],
)
def test_set_attributes_of_tensors_that_a_graph_does_not_set_are_refused(forward: Forward, attribute: str) -> None:
    model = Model(forward)
    model.register_buffer("mean", torch.zeros(8))
    with pytest.raises(CaptureError, match=rf"^Model runs {attribute}, which torch\.export"):
        dp.capture(model, (8,))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.mean.any()


def frozen_already(model: Model, x: torch.Tensor) -> torch.Tensor:
    model.second.requires_grad_(False)
    return model.second(model.first(x.requires_grad_()))


def test_set_attributes_that_change_nothing_are_captured() -> None:
    model = Model(frozen_already)
    model.second.requires_grad_(False)
    check_training(model)


@pytest.mark.parametrize("register", ["register_backward_hook", "register_full_backward_hook"])
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_a_backward_hook_of_a_module_that_changes_a_gradient_is_refused(register: str) -> None:
    model = Model(lambda own, x: own.second(own.first(x)))
    getattr(model.second, register)(lambda module, given, found: tuple(2 * each for each in given))
    with pytest.raises(CaptureError, match=r"^Model runs .* torch\.export loses"):
        dp.capture(model, (8,))


def in_inference_mode(model: Model, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = model.first(x)
    return model.second(y.clone())


def test_inference_mode_that_cuts_a_gradient_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"runs torch\.inference_mode"):
        dp.capture(Model(in_inference_mode), (8,))


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_two_tensors_in_one_memory_are_refused(kind: type) -> None:
    model = Model(lambda own, x: own.first(x))
    model.other = kind(model.first.weight.data)
    with pytest.raises(CaptureError, match="of Model are two tensors in the same memory"):
        dp.capture(model, (8,))
