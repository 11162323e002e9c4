"""Training modes compared live: what is trained, what is recorded, and the numbers made of it."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from deeppool.collectives.partial.firing import FiringRule
from deeppool.collectives.partial.load_imbalance import fixed, rotating, step_times
from deeppool.device.threads import torch_threads
from deeppool.errors import InvalidValueError
from deeppool.runs.mode_comparison import rank as rank_module
from deeppool.runs.mode_comparison.compare import compare_modes
from deeppool.runs.mode_comparison.digits import CLASSES, SIDE, digit_images
from deeppool.runs.mode_comparison.record import ModeComparison, ModePoint, ModeTraining
from deeppool.runs.mode_comparison.tasks import make_task
from deeppool.runs.mode_comparison.virtual_clock import VirtualTraining
from deeppool.simulation.eager_training import simulate_eager_training


@pytest.mark.slow
@pytest.mark.processes
def test_a_late_rank_holds_up_exact_modes_which_train_as_one_process_does_and_not_solo() -> None:
    sizes = {"batch": 16, "features": 8, "samples": 64}
    seen: list[tuple[str, int]] = []
    found = compare_modes(
        "hyperplane", fixed([0.0, 0.3]), ranks=2, updates=6, step=0.001, points=3, seeds=(0, 1),
        modes=("full", "straggler-aware", "solo"),
        on_point=lambda mode, seed, point: seen.append((mode, point.updates)), **sizes,
    )  # fmt: skip
    # One process on the batches of both ranks: the oracle.
    task = make_task("hyperplane", 0, sizes)
    for update in range(6):
        task.optimizer.zero_grad()
        ((task.loss(update, 0, 2) + task.loss(update, 1, 2)) / 2).backward()
        task.optimizer.step()
    for mode in ("full", "straggler-aware"):
        training, another = found.of(mode)
        assert [point.updates for point in training.points] == [2, 4, 6]
        assert training.final.loss == pytest.approx(task.score()[0], rel=1e-4)
        assert training.gradients == another.gradients == 12
        assert min(training.final.seconds, another.final.seconds) > 6 * 0.3
    # Alone it takes a hundredth of a second, to which a busy machine adds, more to one than to the other.
    solo = min(found.of("solo"), key=lambda each: each.final.seconds)
    assert solo.gradients < 12
    assert found.of("full")[solo.seed].final.seconds > 2 * solo.final.seconds
    assert ("full", 4) in seen
    assert "solo" in str(found) and "2 ranks" in str(found)


def test_rounds_that_are_drained_at_the_end_are_no_updates_of_the_time_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Replica:
        """Updates once a step, and by two rounds of late ranks at the end."""

        updates = gradients = 0

        def __enter__(self) -> "Replica":
            return self

        def __exit__(self, *_: object) -> None:
            self.updates += 2

        def step(self) -> None:
            self.updates += 1
            self.gradients += 1

    monkeypatch.setattr(rank_module, "EagerSGD", lambda **_: SimpleNamespace(wrap=lambda *_, **__: Replica()))
    monkeypatch.setattr(rank_module.dist, "barrier", lambda: None)
    command = {"rounds": 4, "step": 0.0, "every": 2, "task": "hyperplane", "seed": 0, "mode": "solo"}
    sizes = {"batch": 4, "features": 8, "samples": 16}
    rank: Any = SimpleNamespace(rank=0, ranks=2, folder=tmp_path)
    commands: Any = SimpleNamespace(answer=lambda *_, **__: None)
    trained = rank_module.RankTraining(command | {"sizes": sizes}, rank, commands).run()
    assert [point["updates"] for point in trained["points"]] == [2, 4]
    assert trained["gradients"] == 4


def training(mode, seed: int, points: list[tuple[float, int, float, float]]) -> ModeTraining:
    return ModeTraining(mode, seed, 0, tuple(ModePoint(s, u, loss, loss, accuracy) for s, u, loss, accuracy in points))


COMPARISON = ModeComparison(
    "digits", 4, 0.1, "a processor",
    tuple(
        training(mode, seed, [(speed * 10, 10, 1.0, 0.5), (speed * 20, 20, 0.5 + seed / 10, 0.9 - drop * seed)])
        for mode, speed, drop in (("full", 1.0, 0.0), ("solo", 0.5, 0.1))
        for seed in range(3)
    ),
)  # fmt: skip


def test_one_seed_is_in_the_singular() -> None:
    assert str(COMPARISON).startswith("digits on 4 ranks, 3 seeds (")
    one = replace(COMPARISON, trainings=tuple(each for each in COMPARISON.trainings if each.seed == 0))
    assert str(one).startswith("digits on 4 ranks, 1 seed (")


def test_gains_are_paired_by_seed_with_students_interval() -> None:
    # Whatever was trained first.
    assert replace(COMPARISON, trainings=COMPARISON.trainings[::-1]).baseline == COMPARISON.baseline == "full"
    assert COMPARISON.speedup("solo") == (pytest.approx(2.0), pytest.approx(0.0))
    mean, half_width = COMPARISON.accuracy_gain("solo")
    changes = [0.0, -0.1, -0.2]
    assert mean == pytest.approx(fmean(changes))
    # Student's t with two degrees of freedom.
    assert half_width == pytest.approx(4.30 * stdev(changes) / math.sqrt(3), rel=1e-2)
    assert COMPARISON.loss("full")[0] == pytest.approx(0.6)


def test_time_to_an_accuracy_is_that_of_the_first_point_and_of_all_seeds() -> None:
    assert COMPARISON.time_to("full", 0.5) == 10.0
    assert COMPARISON.time_to("full", 0.85) == 20.0
    assert COMPARISON.time_to("solo", 0.5) == 5.0
    assert COMPARISON.time_to("solo", 0.85) is None


def test_images_of_digits_differ_from_each_other_and_a_digit_resembles_its_own_kind() -> None:
    images, digits = digit_images(400, 7)
    assert images.shape == (400, 1, SIDE, SIDE)
    assert set(digits.tolist()) == set(range(CLASSES))
    flat = images.flatten(1).numpy()
    assert len(np.unique(flat, axis=0)) == 400
    # The nearest other image is of the same digit far more often than by chance.
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (digits.numpy()[distances.argmin(axis=1)] == digits.numpy()).mean() > 0.3
    assert torch.equal(digit_images(400, 7)[0], images)


def test_the_shares_of_all_ranks_are_the_images_of_a_batch_each_once() -> None:
    task = make_task("digits", 0, {"batch": 12, "images": 40})
    whole = float(task.loss(1, 0, 1).detach())
    parts = [float(task.loss(1, rank, 3).detach()) for rank in range(3)]
    assert fmean(parts) == pytest.approx(whole, rel=1e-5)


def test_nothing_to_compare_and_an_unknown_task_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one mode"):
        compare_modes("digits", fixed([0.0]), modes=())
    with pytest.raises(InvalidValueError, match="got 'words'"):
        make_task("words", 0, {})


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("digits", {"batch": 3, "images": 16}),
        ("digits", {"batch": 32, "images": 16}),
        ("hyperplane", {"batch": 3}),
        ("hyperplane", {"batch": 64, "samples": 32}),
    ],
)
def test_ranks_without_samples_and_epochs_without_a_batch_are_refused(task, sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match=f"got 4 ranks, batches of {sizes['batch']} and epochs of "):
        compare_modes(task, fixed([0.0] * 4), ranks=4, **sizes)


@pytest.mark.parametrize(("clock", "step"), [("wall", -0.1), ("virtual", 0.0)])
def test_steps_that_take_no_time_are_refused(clock, step: float) -> None:
    with pytest.raises(InvalidValueError, match="a step takes some time, got "):
        compare_modes("digits", fixed([0.0]), ranks=1, step=step, clock=clock)


def test_on_a_virtual_clock_gradients_are_computed_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more, the small shares of many ranks took 4 to 15 times as long on a busy machine."""
    seen, gradient = set(), VirtualTraining.gradient

    def counted(training: VirtualTraining, rank: int, update: int) -> np.ndarray:
        seen.add(torch.get_num_threads())
        return gradient(training, rank, update)

    monkeypatch.setattr(VirtualTraining, "gradient", counted)
    with torch_threads(2):
        compare_modes("hyperplane", fixed([0.0]), ranks=1, updates=2, clock="virtual", features=8, samples=64, batch=16)
        assert torch.get_num_threads() == 2
    assert seen == {1}


def test_on_a_virtual_clock_rounds_that_wait_for_all_train_as_one_process_does() -> None:
    sizes = {"batch": 16, "features": 8, "samples": 64}
    found = compare_modes(
        "hyperplane", rotating(4, 0.0, 0.3), ranks=4, updates=6, step=0.1, points=3, modes=("full", "solo"),
        clock="virtual", **sizes,
    )  # fmt: skip
    task = make_task("hyperplane", 0, sizes)
    for update in range(6):
        task.optimizer.zero_grad()
        (sum(task.loss(update, rank, 4) for rank in range(4)) / 4).backward()
        task.optimizer.step()
    [full], [solo] = found.of("full"), found.of("solo")
    assert full.final.loss == pytest.approx(task.score()[0], rel=1e-4)
    assert [(point.updates, round(point.seconds, 6)) for point in full.points] == [(2, 0.8), (4, 1.6), (6, 2.4)]
    assert solo.final.seconds < 2.4 / 1.5
    assert solo.gradients < full.gradients == 24
    assert "simulated, virtual clock" in str(found)
    assert "(1.00x) of 100 % of the samples, " in str(found)
    assert f"x) of {100 * solo.gradients / 24:.0f} % of the samples, " in str(found)


@pytest.mark.parametrize("mode", ["solo", "majority", "straggler-aware"])
def test_every_gradient_that_arrives_is_in_exactly_one_update(mode) -> None:
    class Counted:
        """Every gradient is 1 in an element of its own."""

        def __init__(self) -> None:
            self.elements, self.given = 200, 0
            self.total = np.zeros(200)

        def gradient(self, rank: int, update: int) -> np.ndarray:
            made = np.zeros(self.elements, np.float32)
            made[self.given] = 1
            self.given += 1
            return made

        def update(self, total: np.ndarray, seconds: float) -> None:
            self.total += total

    training = Counted()
    rule = FiringRule(4, mode, seed=1, staleness_limit=3)
    simulate_eager_training(rule, step_times(0.1, rotating(4, 0.0, 0.4)), 20, training=training)
    # Those on which a rank still computes at the end have not arrived.
    assert set(training.total) <= {0.0, 1.0}
    assert training.given - 4 <= training.total.sum() <= training.given


@pytest.mark.parametrize("mode", ["full", "solo"])
def test_the_learning_rate_falls_at_the_given_updates_whatever_the_mode(mode) -> None:
    sizes = {"batch": 8, "images": 16, "width": 4, "rate": 0.1}

    def trained(updates: int, **choices: tuple[int, ...]) -> list[float]:
        found = compare_modes(
            "digits", fixed([0.0, 0.3]), modes=(mode,), ranks=2, updates=updates, step=0.1, points=updates,
            clock="virtual", **sizes, **choices,
        )  # fmt: skip
        return [point.loss for point in found.trainings[0].points]

    plain, decayed, twice = trained(6), trained(6, decay=(3,)), trained(6, decay=(3, 3))
    assert plain[:3] == decayed[:3] == twice[:3]
    # At a tenth of the rate an update does less, and at a hundredth less again.
    moved = [abs(losses[4] - losses[3]) for losses in (plain, decayed, twice)]
    assert moved[0] != moved[1]
    assert moved[1] > moved[2]
