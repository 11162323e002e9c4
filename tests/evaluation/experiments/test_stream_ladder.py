"""Two jobs in two streams, a mechanism more at a time, on an emulated H200: the same numbers on every machine."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from deeppool.device.emulated.device import new_device
from deeppool.device.find import find_device
from deeppool.evaluation.experiments.stream_foreground import StreamForeground
from deeppool.evaluation.experiments.stream_ladder import LadderResult, StreamLadder, TwoJobs, _Beside
from deeppool.scheduling.mechanism_ladder import Rung, mechanism_ladder
from deeppool.training.synthetic_task import SyntheticTask

pytestmark = pytest.mark.slow

RUNGS = mechanism_ladder(batch=4096, smaller_batch=16, share=0.25)
SMALL = mechanism_ladder(batch=2, smaller_batch=1, share=0.25)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *(nn.Linear(1024, 1024, bias=False) for _ in range(3)))


def small_perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 16))


perceptron.input_shape = (1024,)
small_perceptron.input_shape = (16,)


def jobs(batch: int, model: Callable[[], nn.Module], iterations: int = 4) -> TwoJobs:
    name = f"{__name__}:{model.__name__}"
    return TwoJobs(name, name, batch, "fp32", iterations=iterations, rounds=1, alone_seconds=2e-3)


def ladder(*names: str) -> StreamLadder:
    return StreamLadder(jobs(8, small_perceptron), {name: SMALL[name] for name in names}, new_device("h200"))


def measured(foregrounds: Sequence[tuple[int, float]]) -> list[LadderResult]:
    """Beside foregrounds of a batch and with a gap each, the same backgrounds."""
    device = new_device("h200")
    with pytest.MonkeyPatch.context() as patch, device.times_only():
        # Nothing computes with the samples.
        patch.setattr(SyntheticTask, "BATCHES", 1)
        with StreamLadder(jobs(8, perceptron), RUNGS, device) as climbed:
            return [
                climbed.measure(StreamForeground.of_model(climbed._jobs.foreground, batch, "fp32", device), gap)
                for batch, gap in foregrounds
            ]


IDLE = (8, 2e-3)
SATURATING = (4096, 0.0)


@pytest.fixture(scope="module")
def both() -> list[LadderResult]:
    return measured([IDLE, SATURATING])


@pytest.fixture
def idle(both: list[LadderResult]) -> LadderResult:
    return both[0]


@pytest.fixture
def saturating(both: list[LadderResult]) -> LadderResult:
    return both[1]


def test_all_rungs_are_climbed_and_say_what_was_granted(idle: LadderResult) -> None:
    assert [rung.rung for rung in idle.rungs] == list(RUNGS)
    assert idle.left_out == ()
    granted = {rung.rung: rung.granted for rung in idle.rungs}
    assert granted["naive"] == "stream priority high"
    assert granted["+ pacing"] == "stream priority low"
    assert granted["+ SM share 25 %"].endswith("on 40 multiprocessors (granted; 33 were asked for)")
    assert all(rung.problem is None for rung in idle.rungs)
    assert {rung.rung: rung.background_batch for rung in idle.rungs}["+ smaller batch"] == 16


def test_a_priority_helps_a_foreground_that_a_background_delays(idle: LadderResult) -> None:
    kept = {rung.rung: rung.kept for rung in idle.rungs}
    assert kept["naive"] < kept["+ priority"] < kept["+ SM share 25 %"] <= 1.001
    # What the background loses where it is the foreground's equal, it loses to the foreground alone.
    assert max(rung.harvest for rung in idle.rungs) <= 1.001


def test_a_background_gets_less_of_a_device_that_the_foreground_fills(
    idle: LadderResult, saturating: LadderResult
) -> None:
    for ours, theirs in zip(saturating.rungs, idle.rungs, strict=True):
        assert ours.harvest < theirs.harvest


def test_a_saturating_and_an_idle_foreground_rank_the_mechanisms_differently(
    idle: LadderResult, saturating: LadderResult
) -> None:
    assert set(idle.ranking) == set(saturating.ranking) == set(RUNGS)
    assert idle.ranking != saturating.ranking


@pytest.mark.stress
def test_the_numbers_are_the_same_every_time(idle: LadderResult) -> None:
    assert measured([IDLE]) == [idle]


def test_a_rung_that_cannot_be_made_is_named_and_the_others_are_climbed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = StreamLadder._make

    def refuse(climbed: StreamLadder, rung: Rung) -> _Beside:
        if rung.sharing.share is not None:
            raise RuntimeError("no context\nand a traceback of C++")
        return make(climbed, rung)

    monkeypatch.setattr(StreamLadder, "_make", refuse)
    climbed = ladder("naive", "+ SM share 25 %")
    result = climbed.measure()
    assert climbed.failed == {"+ SM share 25 %": "no context"}
    assert result.left_out == ("+ SM share 25 %",)
    assert [rung.rung for rung in result.rungs] == ["naive"]


def test_a_background_that_fails_beside_the_foreground_is_no_result() -> None:
    climbed = ladder("naive", "+ priority")
    climbed._made["naive"].job.training.step = lambda: 1 / 0
    result = climbed.measure()
    assert climbed.failed == {"naive": "beside the foreground: failed: ZeroDivisionError: division by zero"}
    assert result.left_out == ("naive",)
    assert [rung.rung for rung in result.rungs] == ["+ priority"]


def test_what_there_is_no_time_for_is_left_out() -> None:
    allowed = iter([True, False])
    climbed = StreamLadder(
        jobs(8, small_perceptron),
        {name: SMALL[name] for name in ("naive", "+ priority")},
        new_device("h200"),
        lambda: next(allowed, False),
    )
    result = climbed.measure()
    assert (climbed.failed, result.left_out, result.rungs) == ({}, ("naive", "+ priority"), ())


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["cpu", "emulated"])
def test_it_runs_in_the_time_of_the_machine_too(kind: str) -> None:
    result = StreamLadder(jobs(8, small_perceptron), SMALL, find_device(kind)).measure()
    assert [rung.rung for rung in result.rungs] == list(SMALL)
    assert all(rung.foreground.mean > 0 and rung.harvest >= 0 for rung in result.rungs)
    problems = {rung.rung: rung.problem for rung in result.rungs if rung.problem}
    assert problems == {"+ SM share 25 %": f"device {kind} has no multiprocessors"}


def test_a_foreground_does_not_wait_for_the_end_of_what_a_background_has_launched() -> None:
    """A background enters and leaves its stream at each step, and the stream around it then waits for the step."""
    device = new_device("h200")
    with device.times_only():
        foreground = StreamForeground.of_model(f"{__name__}:small_perceptron", 8, "fp32", device)
        low, launched = device.stream("low"), device.clock.signal()
        matrix = torch.empty(2048, 2048, device=device.torch_device())
        stamps = []

        def step() -> None:
            with low.current():
                stamps.append(device.stamp())
                for _ in range(100):
                    torch.mm(matrix, matrix)
                stamps.append(device.stamp())
            launched.set()

        with foreground.current():
            foreground.repeat(2)
            thread = device.clock.start_thread(step, "background")
            launched.wait()
            foreground.repeat(1)
            stamps.append(device.stamp())
            thread.join()
            device.synchronize()
    start, end_of_step, end_of_iteration = stamps
    assert device.seconds(start, end_of_iteration) < 0.5 * device.seconds(start, end_of_step)
