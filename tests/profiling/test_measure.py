"""Measuring on the CPU at hand: what is measured, what an interruption keeps, what cannot be measured."""

import json

import pytest
import torch
from torch import nn

from deeppool import documents
from deeppool.device.cuda import cuda_problem
from deeppool.errors import DeviceUnavailableError, DocumentError, InvalidValueError, ProfileError
from deeppool.graph.capture import capture
from deeppool.profiling import measure
from deeppool.profiling.measure import profile
from deeppool.profiling.table import Profile

SIZES = (1, 2)
ALL = {(layer, batch) for layer in ("body.0", "body.2", "head") for batch in SIZES}


class Small(nn.Module):
    """Three layers, none like another: the first needs no gradient of its input, the last ends in the loss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Deeper(Small):
    """The same layers and one more."""

    def __init__(self):
        super().__init__()
        self.top = nn.Linear(2, 2)

    def forward(self, x):
        return self.top(super().forward(x))


@pytest.fixture(scope="module")
def model():
    return capture(Small(), (8,))


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    """The fewest runs that have a median."""
    monkeypatch.setattr(measure, "MINIMUM_SECONDS", 0.0)


@pytest.fixture
def measured(monkeypatch):
    """The (layer, batch) pairs that are really measured."""
    calls = []
    original = measure._measure

    def count(captured, layer, batch, *rest):
        calls.append((captured.graph.layers[layer].name, batch))
        return original(captured, layer, batch, *rest)

    monkeypatch.setattr(measure, "_measure", count)
    return calls


def interrupt_before(position):
    """A progress callback that presses Ctrl-C when ``position`` measurements are done."""

    def progress(done, total, what):
        if done == position:
            raise KeyboardInterrupt

    return progress


# -- what is measured -------------------------------------------------------------------------------


def test_profile_of_the_cpu_says_how_it_was_measured(model):
    made = profile(model, device="cpu", batch_sizes=(4, 1, 4, 2))
    assert made.batch_sizes == (1, 2, 4)
    assert made.graph is model.graph
    assert (made.device, made.precision, made.threads, made.provenance) == ("cpu", "fp32", 1, "measured")
    assert made.method == measure.METHOD
    assert made.versions["torch"] == torch.__version__
    assert made.origin is model
    for index in range(len(model.graph.layers)):
        for batch in (1, 2, 4):
            assert made.time(index, batch).forward > 0
            assert made.time(index, batch).backward > 0


def test_layers_that_are_alike_are_measured_once(model, measured):
    alike = capture(
        nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)], nn.Linear(8, 2)), (8,)
    )
    profile(alike, device="cpu", batch_sizes=SIZES)
    # The first layer reads data, which needs no gradient; the last one ends in the loss; 1.0, 2.0 and 3.0 are one.
    assert len(measured) == len(set(measured))
    assert set(measured) == {(name, batch) for name in ("0.0", "1.0", "4") for batch in SIZES}


def test_progress_tells_what_is_next_and_ends_in_done(model):
    seen = []
    profile(model, device="cpu", batch_sizes=SIZES, on_progress=lambda *step: seen.append(step))
    assert [(done, total) for done, total, _ in seen] == [(done, 6) for done in range(7)]
    assert {what for _, _, what in seen[:-1]} == {f"{layer} at batch {batch}" for layer, batch in ALL}
    assert seen[-1][2] == "done"


def test_threads_are_those_asked_for_and_put_back(model, monkeypatch):
    seen = set()
    monkeypatch.setattr(measure, "_measure", lambda *_: seen.add(torch.get_num_threads()) or (1.0, 1.0, 0.0))
    before = torch.get_num_threads()
    made = profile(model, device="cpu", batch_sizes=SIZES, threads=2)
    assert seen == {2}
    assert made.threads == 2
    assert torch.get_num_threads() == before


def test_median_is_kept_and_an_outlier_is_not(monkeypatch):
    runs = iter([(9.0, 9.0), (1.0, 2.0), (1.0, 2.0), (50.0, 70.0)])
    monkeypatch.setattr(measure, "MINIMUM_RUNS", 3)
    forward, backward, spread = measure._repeat(lambda: next(runs))
    # The first run warms up and counts for nothing.
    assert (forward, backward) == (1.0, 2.0)
    # Quartiles of 3, 3 and 120 seconds: 3 and 120, around a median of 3.
    assert spread == pytest.approx((120 - 3) / 2 / 3)


def test_measuring_changes_no_weight_and_leaves_no_gradient(model):
    before = {name: value.clone() for name, value in model.source.state_dict().items()}
    profile(model, device="cpu", batch_sizes=SIZES)
    torch.testing.assert_close(model.source.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.source.parameters())


def test_measuring_leaves_running_statistics_alone():
    # Random activations must not become the statistics of a model that is trained afterwards.
    normalised = capture(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)), (3, 8, 8)
    )
    before = {name: value.clone() for name, value in normalised.source.state_dict().items()}
    profile(normalised, device="cpu", batch_sizes=SIZES)
    torch.testing.assert_close(normalised.source.state_dict(), before, rtol=0, atol=0)


# -- interruptions ----------------------------------------------------------------------------------


def test_interrupted_profile_goes_on_where_it_was(model, measured, tmp_path):
    file, partial = tmp_path / "small.json", tmp_path / "small.json.partial"
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, output=file, on_progress=interrupt_before(3))
    assert partial.exists()
    assert not file.exists()
    first = list(measured)
    measured.clear()
    made = profile(model, device="cpu", batch_sizes=SIZES, output=file)
    assert len(first) == len(measured) == 3
    assert {*first, *measured} == ALL
    assert not partial.exists()
    assert documents.read(file, Profile) == made


def test_continued_profile_may_add_batch_sizes(model, measured, tmp_path):
    file = tmp_path / "small.json"
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, output=file, on_progress=interrupt_before(2))
    first = list(measured)
    measured.clear()
    profile(model, device="cpu", batch_sizes=(1, 2, 4), output=file)
    assert set(measured) == ALL - {*first} | {(layer, 4) for layer, _ in ALL}


def test_what_another_model_left_is_not_reused(model, measured, tmp_path):
    file = tmp_path / "small.json"
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, output=file, on_progress=interrupt_before(5))
    measured.clear()
    # The two models share layers, but the file that the log belongs to is the first one's.
    profile(capture(Deeper(), (8,)), device="cpu", batch_sizes=SIZES, output=file)
    assert {layer for layer, _ in measured} == {"body.0", "body.2", "head", "top"}


@pytest.mark.parametrize("other", [{"threads": 2}, {"precision": "bf16"}])
def test_what_was_measured_otherwise_is_not_reused(model, measured, tmp_path, other):
    file = tmp_path / "small.json"
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, output=file, on_progress=interrupt_before(5))
    measured.clear()
    profile(model, device="cpu", batch_sizes=SIZES, output=file, **other)
    assert set(measured) == ALL


@pytest.mark.parametrize("cut", [1, 10])
def test_line_cut_short_by_the_interruption_is_measured_again(model, measured, tmp_path, cut):
    file, partial = tmp_path / "small.json", tmp_path / "small.json.partial"
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, output=file, on_progress=interrupt_before(3))
    text = partial.read_text()
    partial.write_text(text.rstrip("\n")[:-cut])
    third = measured[2]
    measured.clear()
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, output=file, on_progress=interrupt_before(4))
    assert measured[0] == third
    assert len(measured) == 2
    # The log is whole again, for the interruption after this one.
    assert len([json.loads(line) for line in partial.read_text().splitlines()]) == 1 + 4


def test_without_an_output_nothing_is_kept(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        profile(model, device="cpu", batch_sizes=SIZES, on_progress=interrupt_before(3))
    assert list(tmp_path.iterdir()) == []


# -- errors -----------------------------------------------------------------------------------------


def test_cuda_is_refused_where_there_is_none(model):
    problem = cuda_problem()
    if problem is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceUnavailableError, match=r"cuda was asked for, .*use --device cpu, or see: deeppool env"):
        profile(model, device="cuda", batch_sizes=SIZES)


def test_unknown_device_is_refused(model):
    with pytest.raises(InvalidValueError, match="device must be auto, cpu or cuda, got 'tpu'"):
        profile(model, device="tpu")


@pytest.mark.parametrize("sizes", [(), (0, 1), (-2,)])
def test_batch_sizes_that_are_none_are_refused(model, sizes):
    with pytest.raises(InvalidValueError, match="batch_sizes must be positive numbers"):
        profile(model, device="cpu", batch_sizes=sizes)


def test_output_that_cannot_be_written_is_refused_before_measuring(model, measured, tmp_path):
    with pytest.raises(DocumentError, match="there is no folder"):
        profile(model, device="cpu", batch_sizes=SIZES, output=tmp_path / "nowhere" / "small.json")
    assert measured == []


def test_layer_that_cannot_run_at_a_batch_is_named(model, monkeypatch):
    original = measure._run_once

    def run_out_of_memory(segment, batch, *rest):
        if batch == 2:
            raise RuntimeError("out of memory: tried to allocate 1.00 GiB\nand much more text")
        return original(segment, batch, *rest)

    monkeypatch.setattr(measure, "_run_once", run_out_of_memory)
    layer = r"layer '(body\.0|body\.2|head)' of Small"
    phrase = layer + r" cannot run at batch 2: out of memory: tried .* 1\.00 GiB \(try other --batch-sizes\)"
    with pytest.raises(ProfileError, match=phrase):
        profile(model, device="cpu", batch_sizes=SIZES)
