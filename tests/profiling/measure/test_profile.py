"""Measuring on the CPU at hand: what is measured, what an interruption keeps, what cannot be measured."""

import json
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from deeppool.base import serialization
from deeppool.device.cpu import usable_cores
from deeppool.device.cuda import cuda_problem
from deeppool.errors import DeviceUnavailableError, DocumentError, InvalidValueError, ProfileError
from deeppool.graph.capture.capture import capture
from deeppool.profiling.measure import bench, sampling
from deeppool.profiling.measure import profile as profile_module
from deeppool.profiling.measure.iteration import Iteration
from deeppool.profiling.measure.profile import profile, resumable
from deeppool.profiling.measure.update import UpdateBench
from deeppool.profiling.store import MeasurementLog
from deeppool.profiling.table import Profile

SIZES = (1, 2)
RUNS = 2
"""Iterations of each kind at each batch size; a warm-up comes before."""


class Small(nn.Module):
    """Three layers, none like another: the first needs no gradient of its input, the last ends in the loss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Deeper(Small):
    """Model with one layer more than :class:`Small`."""

    def __init__(self):
        super().__init__()
        self.top = nn.Linear(2, 2)

    def forward(self, x):
        return self.top(super().forward(x))


@pytest.fixture(scope="module")
def model():
    return capture(Small(), (8,))


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch):
    """Limits profiling to few iterations, however unsteady."""
    monkeypatch.setattr(sampling, "MAXIMUM_RUNS", RUNS)


@pytest.fixture
def measured(monkeypatch):
    """Batch size, and whether there were stamps between the layers, of each iteration that was kept."""
    calls = []
    original = MeasurementLog.add

    def add(self, batch, layered, times):
        calls.append((batch, layered))
        original(self, batch, layered, times)

    monkeypatch.setattr(MeasurementLog, "add", add)
    return calls


def interrupt_after(iterations, monkeypatch):
    """Raises KeyboardInterrupt after a number of recorded iterations."""
    original = MeasurementLog.add
    left = [iterations]

    def add(self, *measured):
        original(self, *measured)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(MeasurementLog, "add", add)


# -- what is measured -------------------------------------------------------------------------------


def test_a_cpu_profile_records_how_it_was_measured(model):
    made = profile(model, device="cpu", batch_sizes=(4, 1, 4, 2))
    assert made.batch_sizes == (1, 2, 4)
    assert made.graph is model.graph
    assert (made.device, made.precision, made.threads, made.provenance) == ("cpu", "fp32", 1, "measured")
    assert made.method.startswith("whole iterations, eager, with a stamp between the layers")
    assert [check.batch for check in made.checks] == [1, 2, 4]
    for check in made.checks:
        assert check.layers == made.iteration_time(check.batch)
        assert check.iteration > 0
        assert check.peak_memory is None
    assert made.versions["torch"] == metadata.version("torch")  # torch.__version__ may carry a build's label
    assert made.origin is model
    for index in range(len(model.graph.layers)):
        for batch in (1, 2, 4):
            assert made.time(index, batch).forward > 0
            assert made.time(index, batch).backward > 0


def test_the_update_of_all_parameters_is_measured(model, monkeypatch):
    """Steps of 3, 3 (warm-up), 1, 2, 9, 3 and 9 seconds: the mean of the faster half of five, a byte of parameters."""
    seconds = iter([3.0, 3.0, 1.0, 2.0, 9.0, 3.0, 9.0])
    original, updated = UpdateBench.step, []

    def step(self):
        updated.append([parameter.grad is not None for parameter in self._parameters])
        original(self)
        return next(seconds)

    monkeypatch.setattr(UpdateBench, "step", step)
    made = profile(model, device="cpu", batch_sizes=(1,))
    assert made.update_per_byte == pytest.approx(2.0 / model.graph.parameter_bytes)
    assert updated == [[True] * len(list(model.source.parameters()))] * 7
    assert "update of all parameters: 2 s, measured" in made.explain()


def test_equal_layers_share_a_measurement_that_preserves_the_sum(monkeypatch):
    alike = capture(
        nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)], nn.Linear(8, 2)), (8,)
    )
    assert len(alike.graph.layers) == 5
    # One layered iteration a size, its layers forward 1, 2, 3, 4, 5 and backward 10, 20, 30, 40, 50 seconds.
    run = tuple((float(i), 10.0 * i) for i in range(1, 6))
    keep = lambda self, batch, layered, _: self._append(batch, layered, run if layered else ((15.0, 150.0),))  # noqa: E731
    monkeypatch.setattr(MeasurementLog, "add", keep)
    made = profile(alike, device="cpu", batch_sizes=(1,))
    # The first layer reads data, which needs no gradient; the last one ends in the loss; 1.0, 2.0 and 3.0 are one.
    assert len(made.measurements) == 3
    assert [made.time(index, 1).forward for index in range(5)] == [1, 3, 3, 3, 5]
    assert [made.time(index, 1).backward for index in range(5)] == [10, 30, 30, 30, 50]
    assert made.checks[0].layers == made.checks[0].iteration == 165
    assert made.checks[0].deviation == 0


def test_layer_times_add_up_to_the_stamped_iterations(model, monkeypatch):
    kept = []
    original = MeasurementLog.add

    def add(self, batch, layered, times):
        original(self, batch, layered, times)
        if layered:
            kept.append(sum(map(sum, times)))

    monkeypatch.setattr(MeasurementLog, "add", add)
    made = profile(model, device="cpu", batch_sizes=(2,))
    assert len(kept) == RUNS
    assert made.checks[0].layers == pytest.approx(min(kept))


@pytest.mark.parametrize(("long", "warm_ups"), [(1e9, len(SIZES)), (0.0, 0)])
def test_a_short_iteration_has_a_warm_up_that_is_not_recorded(model, measured, monkeypatch, long, warm_ups):
    monkeypatch.setattr(bench, "LONG_ITERATION", long)
    runs = []
    original = Iteration.run
    monkeypatch.setattr(Iteration, "run", lambda *given: runs.append(1) or original(*given))
    profile(model, device="cpu", batch_sizes=SIZES)
    assert len(measured) == 2 * RUNS * len(SIZES)
    # And one whose gradients the update takes.
    assert len(runs) == len(measured) + warm_ups + 1


def test_few_seconds_are_few_iterations(model, measured):
    profile(model, device="cpu", batch_sizes=SIZES, seconds=1e-9)
    # Two layered ones and a whole one, whatever they take.
    assert measured == [(batch, layered) for batch in SIZES for layered in (True, False, True)]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_invalid_seconds_are_refused(model, seconds):
    with pytest.raises(InvalidValueError, match="seconds must be positive and finite"):
        profile(model, device="cpu", seconds=seconds)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"precision": "FP32"}, "precision must be one of fp32, tf32, bf16, fp16, got 'FP32'"),
        ({"precision": None}, "precision must be one of fp32, tf32, bf16, fp16, got None"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"ranks": True}, "ranks must be a whole number, got True"),
        ({"batch_sizes": [True]}, r"batch_sizes must be positive numbers, got \[True\]"),
        ({"device": torch.device("cpu")}, r"device must be one of auto, cpu, .*got device\(type='cpu'\)"),
    ],
)
def test_an_argument_that_is_none_of_its_kind_is_refused(model, argument, message):
    """What is unknown was measured as fp32, under its name."""
    with pytest.raises(InvalidValueError, match=message):
        profile(model, **{"device": "cpu", **argument})


def test_threads_ranks_and_graphs_may_be_numpys(model, tmp_path):
    numbers = {"threads": np.int64(1), "ranks": np.int64(1), "graphs": np.False_}
    found = profile(model, device="cpu", batch_sizes=SIZES, output=tmp_path / "p.json", **numbers)
    assert serialization.read(tmp_path / "p.json", type(found)).threads == found.threads == 1


def test_progress_grows_and_ends_in_done(model):
    seen = []
    profile(model, device="cpu", batch_sizes=SIZES, on_progress=lambda *step: seen.append(step))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert (shares[0], seen[-1]) == (0.0, ("done", 1.0))
    assert {what for what, _ in seen[:-1]} == {f"Small at batch {batch}" for batch in SIZES}


@pytest.mark.slow
def test_the_requested_thread_count_is_set_and_restored(model, monkeypatch):
    seen = set()
    original = profile_module.Bench.measure
    note = lambda *given: seen.add(torch.get_num_threads()) or original(*given)  # noqa: E731
    monkeypatch.setattr(profile_module.Bench, "measure", note)
    before = torch.get_num_threads()
    made = profile(model, device="cpu", batch_sizes=SIZES, threads=2)
    assert seen == {2}
    assert made.threads == 2
    assert torch.get_num_threads() == before


def test_measuring_changes_no_weight_and_leaves_no_gradient(model):
    before = {name: value.clone() for name, value in model.source.state_dict().items()}
    profile(model, device="cpu", batch_sizes=SIZES)
    torch.testing.assert_close(model.source.state_dict(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.source.parameters())


@pytest.mark.slow
def test_measuring_does_not_change_running_statistics():
    # Random activations must not become the statistics of a model that is trained afterwards.
    normalised = capture(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)), (3, 8, 8)
    )
    before = {name: value.clone() for name, value in normalised.source.state_dict().items()}
    profile(normalised, device="cpu", batch_sizes=SIZES)
    torch.testing.assert_close(normalised.source.state_dict(), before, rtol=0, atol=0)


# -- interruptions ----------------------------------------------------------------------------------


def test_an_interrupted_profile_resumes(model, measured, tmp_path):
    file, partial = tmp_path / "small.json", tmp_path / "small.json.partial"
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(3, patch)
        with pytest.raises(KeyboardInterrupt):
            profile(model, device="cpu", batch_sizes=SIZES, output=file)
    assert partial.exists()
    assert not file.exists()
    first = list(measured)
    assert first == [(1, True), (1, False), (1, True)]
    measured.clear()
    made = profile(model, device="cpu", batch_sizes=SIZES, output=file)
    assert measured == [(1, False), (2, True), (2, False), (2, True), (2, False)]
    assert not partial.exists()
    assert serialization.read(file, Profile) == made


def interrupted(model, file, iterations, **arguments):
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(iterations, patch)
        with pytest.raises(KeyboardInterrupt):
            profile(model, device="cpu", batch_sizes=SIZES, output=file, **arguments)


def test_continued_profile_may_add_batch_sizes(model, measured, tmp_path):
    file = tmp_path / "small.json"
    interrupted(model, file, 2 * RUNS)
    measured.clear()
    profile(model, device="cpu", batch_sizes=(1, 2, 4), output=file)
    assert {batch for batch, _ in measured} == {2, 4}


def test_measurements_of_another_model_are_not_reused(model, measured, tmp_path):
    file = tmp_path / "small.json"
    interrupted(model, file, 5)
    measured.clear()
    profile(capture(Deeper(), (8,)), device="cpu", batch_sizes=SIZES, output=file)
    assert len(measured) == 2 * RUNS * len(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"threads": 2},
        {"precision": "bf16"},
        pytest.param(
            {"ranks": 2},
            marks=[
                pytest.mark.processes,
                pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores"),
            ],
        ),
    ],
)
def test_measurements_under_other_settings_are_not_reused(model, measured, tmp_path, other):
    file = tmp_path / "small.json"
    interrupted(model, file, 5)
    measured.clear()
    profile(model, device="cpu", batch_sizes=SIZES, output=file, **other)
    assert len(measured) == 2 * RUNS * len(SIZES)


def test_reusable_measurements_are_listed_before_measuring(model, tmp_path):
    file = tmp_path / "small.json"
    assert resumable(file, device="cpu") is None
    interrupted(model, file, 5)
    kept = resumable(file, model.graph, device="cpu")
    assert kept is not None
    assert kept.iterations == {1: 4, 2: 1}
    assert str(kept) == "5 finished iterations (4 at batch 1, 1 at batch 2)"
    assert resumable(file, device="cpu") == kept
    assert resumable(file, capture(Deeper(), (8,)).graph, device="cpu") is None
    assert resumable(file, model.graph, device="cpu", precision="bf16") is None
    assert resumable(file, model.graph, device="cpu", threads=2) is None
    profile(model, device="cpu", batch_sizes=SIZES, output=file)
    assert resumable(file, model.graph, device="cpu") is None


def test_a_log_of_another_format_is_not_resumed(tmp_path):
    (tmp_path / "small.json.partial").write_text("something\n[1, true, [[1, 2]]]\n")
    assert resumable(tmp_path / "small.json", device="cpu") is None


@pytest.mark.parametrize("cut", [1, 10])
def test_line_cut_short_by_the_interruption_is_measured_again(model, measured, tmp_path, cut):
    file, partial = tmp_path / "small.json", tmp_path / "small.json.partial"
    interrupted(model, file, 3)
    text = partial.read_text()
    partial.write_text(text.rstrip("\n")[:-cut])
    measured.clear()
    interrupted(model, file, 1)
    assert measured == [(1, True)]
    # The log is whole again, for the interruption after this one.
    assert len([json.loads(line) for line in partial.read_text().splitlines()]) == 1 + 3


def test_progress_begins_with_the_capture_of_a_model_that_is_not_captured_yet():
    progress = []
    profile(Small(), (8,), device="cpu", batch_sizes=(1,), on_progress=lambda *report: progress.append(report))
    assert progress[0] == ("exporting Small", 0.0)
    shares = [share for _, share in progress]
    assert shares == sorted(shares)
    assert progress[-1] == ("done", 1.0)


def test_without_an_output_no_file_is_written(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    interrupted(model, None, 3)
    assert list(tmp_path.iterdir()) == []


# -- emulated devices -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["emulated", "emulated:h200"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_an_emulated_device_the_model_keeps_its_weights(kind, precision):
    captured = capture(Small(), (8,))
    before = {name: value.clone() for name, value in captured.source.state_dict().items()}
    found = profile(captured, device=kind, precision=precision, batch_sizes=SIZES)
    assert (found.device, found.graphs) == (kind, True)
    assert "emulat" in found.device_name
    assert all(torch.equal(value, before[name]) for name, value in captured.source.state_dict().items())


def test_the_memory_of_an_iteration_does_not_count_earlier_profiles():
    captured = capture(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (64,))
    peaks = [profile(captured, device="emulated:h200", batch_sizes=(2,)).checks[0].peak_memory for _ in range(3)]
    assert peaks[1:] == peaks[:1] * 2
    # Weights and their gradients.
    assert 2 * captured.graph.parameter_bytes < peaks[0] < 3 * captured.graph.parameter_bytes


@pytest.mark.slow
def test_in_virtual_time_layers_add_up_to_the_iteration_and_times_are_the_same_every_time(monkeypatch):
    monkeypatch.setattr(sampling, "MAXIMUM_RUNS", 2 * sampling.MINIMUM_RUNS)
    found, again = (profile(capture(Small(), (8,)), device="emulated:h200", batch_sizes=SIZES) for _ in range(2))
    assert all(abs(check.deviation) < 1e-6 for check in found.checks)
    # So few are measured.
    assert {check.runs for check in found.checks} == {sampling.MINIMUM_RUNS}
    for one, other in zip(found.measurements, again.measurements, strict=True):
        assert one.forward == pytest.approx(other.forward)
        assert one.backward == pytest.approx(other.backward)


class RelativePositions(nn.Module):
    """As in Swin: a learned bias is looked up by a buffer of positions, and a view in place pools channels last."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(5, 3))
        self.register_buffer("positions", torch.tensor([[0, 4], [3, 1]]))
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        biased = x.view(-1, 2, 2, 3) + self.table[self.positions]
        return self.pool(biased.permute(0, 3, 1, 2)).flatten(1)


@pytest.mark.parametrize("kind", ["emulated", "emulated:h200"])
def test_a_model_that_looks_up_by_positions_is_profiled(kind):
    found = profile(capture(RelativePositions(), (12,)), device=kind, batch_sizes=(1, 2))
    assert all(check.iteration > 0 for check in found.checks)


# -- errors -----------------------------------------------------------------------------------------


def test_cuda_is_refused_where_there_is_none(model):
    problem = cuda_problem()
    if problem is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceUnavailableError, match=r"cuda was requested, .*use --device cpu, or see: deeppool env"):
        profile(model, device="cuda", batch_sizes=SIZES)


def test_unknown_device_is_refused(model):
    with pytest.raises(InvalidValueError, match=r"one of auto, cpu, cuda, emulated, or emulated:GPU .*, got 'tpu'"):
        profile(model, device="tpu")


@pytest.mark.parametrize("sizes", [(), (0, 1), (-2,)])
def test_invalid_batch_sizes_are_refused(model, sizes):
    with pytest.raises(InvalidValueError, match="batch_sizes must be positive numbers"):
        profile(model, device="cpu", batch_sizes=sizes)


def test_output_that_cannot_be_written_is_refused_before_measuring(model, measured, tmp_path):
    with pytest.raises(DocumentError, match="there is no folder"):
        profile(model, device="cpu", batch_sizes=SIZES, output=tmp_path / "nowhere" / "small.json")
    assert measured == []


class _Fails(torch.autograd.Function):
    """Function that runs out of memory in its backward."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError(OUT_OF_MEMORY)


OUT_OF_MEMORY = "out of memory: tried to allocate 1.00 GiB\nand much more text"


def fails_at_two(x, weight, bias):
    """Function that runs out of memory in its forward."""
    if x.shape[0] == 2:
        raise RuntimeError(OUT_OF_MEMORY)
    return nn.functional.linear(x, weight, bias)


def fails_backward_at_two(x, weight, bias):
    result = nn.functional.linear(x, weight, bias)
    return _Fails.apply(result) if x.shape[0] == 2 else result


@pytest.mark.parametrize("failing_linear", [fails_at_two, fails_backward_at_two])
def test_layer_that_cannot_run_at_a_batch_is_named(failing_linear):
    failing = capture(Small(), (8,))
    (node,) = [node for node in failing.nodes[1] if node.target is torch.ops.aten.linear.default]
    node.target = failing_linear
    phrase = (
        r"layer 'body\.2' of Small cannot run at batch 2: out of memory: tried .* 1\.00 GiB \(try other --batch-sizes\)"
    )
    with pytest.raises(ProfileError, match=phrase):
        profile(failing, device="cpu", batch_sizes=SIZES)


def test_inputs_of_another_dtype_than_the_parameters_are_told_of_that():
    # It advised other batch sizes.
    with pytest.raises(ProfileError, match=r"same dtype, .* \(inputs and parameters must have one dtype: give capture"):
        profile(capture(nn.Linear(8, 2).double(), (8,)), device="cpu", batch_sizes=SIZES)


def test_a_batch_beyond_the_memory_is_refused_before_it_runs(model, measured, monkeypatch):
    monkeypatch.setattr("deeppool.device.cpu.CpuDevice.free_memory", lambda self: 1000)
    with pytest.raises(ProfileError, match=r"an iteration of Small at batch 2 needs .*, and 1000 B are free on"):
        profile(model, device="cpu", batch_sizes=SIZES)
    assert measured == []


def test_a_gpu_that_is_not_here_needs_no_memory_of_this_machine(monkeypatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    assert profile(capture(Small(), (8,)), device="emulated:h200", batch_sizes=SIZES).batch_sizes == SIZES


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"precision": "tf32"}, "precision tf32 needs an NVIDIA GPU, got device cpu"),
        ({"graphs": True}, "graphs are CUDA graphs, got device cpu"),
    ],
)
def test_gpu_only_options_are_refused_on_a_cpu(model, measured, arguments, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        profile(model, device="cpu", batch_sizes=SIZES, **arguments)
    assert measured == []
