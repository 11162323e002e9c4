"""Compares training modes under load imbalance, live, on ranks of this machine."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from deeppool.base.cancellation import check
from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.device.find import find_device
from deeppool.errors import InvalidValueError
from deeppool.execution.load_imbalance import save_delays
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder
from deeppool.runs.mode_comparison.record import VIRTUAL, ModeComparison, ModePoint, ModeTraining
from deeppool.runs.mode_comparison.tasks import TaskName, make_task
from deeppool.runs.mode_comparison.virtual_clock import train_on_virtual_clock

COMPARED: tuple[Mode, ...] = ("full", "straggler-aware", "majority", "solo")
START_TIMEOUT, SILENCE_TIMEOUT = 120.0, 60.0
"""Seconds without progress after which a rank counts as hung: while it starts, and later."""

OnPoint = Callable[[Mode, int, ModePoint], None]
"""Called with mode, seed and point."""


def compare_modes(
    task: TaskName,
    delays: Delays,
    *,
    modes: Sequence[Mode] = COMPARED,
    seeds: Sequence[int] = (0,),
    ranks: int = 8,
    updates: int = 300,
    step: float = 0.05,
    points: int = 20,
    on_point: OnPoint | None = None,
    clock: Literal["wall", "virtual"] = "wall",
    on_progress: Callable[[str, float], None] | None = None,
    **sizes: Any,
) -> ModeComparison:
    """Trains one task by each mode, all modes of a seed one after the other, on the same processes.

    On a virtual clock one process computes the gradients of all ranks, and times are simulated.

    Args:
        task: ``digits``, a small ResNet on images of digits, or ``hyperplane``, a regression.
        delays: what each rank takes longer in an update.
        modes: of :class:`deeppool.EagerSGD`; the first is the baseline.
        seeds: of weights, data and majority's draws.
        ranks: processes.
        updates: of each training.
        step: least seconds of a step without delay: ranks that share cores sleep for the rest of it.
        points: of each training, at which loss and accuracy are measured, after it has ended.
        on_point: called with each point while the training runs, on the wall clock.
        clock: ``wall`` measures processes; ``virtual`` simulates their times, by the step and the delays alone.
        on_progress: called with the mode that is trained and the completed fraction.
        sizes: arguments of the task.

    Raises:
        InvalidValueError: nothing to compare.
        RankFailedError: a rank failed; every process has ended by then.
        RunCancelledError: this thread's run was cancelled; the same.
    """
    if not modes or not seeds or min(ranks, updates, points) < 1:
        raise InvalidValueError(
            f"at least one mode, seed, rank, update and point, got {len(modes)}, {len(seeds)}, {ranks}, {updates} and "
            f"{points}"
        )
    order = [(mode, seed) for seed in seeds for mode in modes]
    every, report = max(1, updates // points), on_progress or (lambda what, share: None)
    trainings = []
    if clock == "virtual":
        for done, (mode, seed) in enumerate(order):
            check()
            report(f"training by {mode}", done / len(order))
            made, rule = make_task(task, seed, sizes), FiringRule(ranks, mode, seed=seed)
            trainings.append(train_on_virtual_clock(made, rule, delays, updates=updates, step=step, every=every))
        return ModeComparison(task, ranks, step, VIRTUAL, tuple(trainings))
    with ExitStack() as stack:
        folder = stack.enter_context(private_folder())
        group = stack.enter_context(RankGroup(LocalLauncher("cpu", ranks)))
        _start(group, ranks, folder)
        save_delays(delays, folder)
        for done, (mode, seed) in enumerate(order):

            def follow(message: dict[str, Any], mode: Mode = mode, seed: int = seed, done: int = done) -> None:
                point = ModePoint(message["seconds"], message["updates"], message["batch_loss"])
                if on_point is not None:
                    on_point(mode, seed, point)
                report(f"training by {mode}", (done + min(1.0, point.updates / updates)) / len(order))

            group.send(
                "train", task=task, sizes=sizes, mode=mode, seed=seed, updates=updates, step=step, every=every,
                folder=str(folder),
            )  # fmt: skip
            answers = group.collect("done", SILENCE_TIMEOUT, f"while it trained by {mode}", follow)
            gradients = sum(answer["gradients"] for answer in answers)
            trainings.append(
                ModeTraining(mode, seed, gradients, tuple(ModePoint(**each) for each in answers[0]["points"]))
            )
    return ModeComparison(task, ranks, step, find_device("cpu").name, tuple(trainings))


def _start(group: RankGroup, ranks: int, folder: Path) -> None:
    for rank in range(ranks):
        rendezvous = (folder / "rendezvous").as_uri()
        group.start("deeppool.runs.mode_comparison.rank").send("setup", rank=rank, ranks=ranks, rendezvous=rendezvous)
    group.collect("ready", START_TIMEOUT, "while it started")
