"""Compares training modes under load imbalance, live, on ranks of this machine."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from deeppool.base.cancellation import check
from deeppool.base.run_registry import registered
from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.load_imbalance import Delays
from deeppool.errors import InvalidValueError
from deeppool.execution.comparison.turns import joined_ranks
from deeppool.execution.load_imbalance import save_delays
from deeppool.processes.managed_process import Message
from deeppool.runs.mode_comparison.record import VIRTUAL, ModeComparison, ModePoint, ModeTraining
from deeppool.runs.mode_comparison.tasks import TaskName, check_sizes, make_task
from deeppool.runs.mode_comparison.virtual_clock import train_on_virtual_clock

COMPARED: tuple[Mode, ...] = ("full", "straggler-aware", "majority", "solo")
WORKER = "deeppool.runs.mode_comparison.rank"
SILENCE_TIMEOUT = 60.0
"""Seconds without progress after which a rank counts as hung."""

OnPoint = Callable[[Mode, int, ModePoint], None]
"""Called with mode, seed and point."""


@registered
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
        modes: of :class:`deeppool.EagerSGD`; ``full`` is the baseline, in any order.
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
        InvalidValueError: nothing to compare, or ranks without a sample of a batch.
        RankFailedError: a rank failed; every process has ended by then.
        RunCancelledError: this thread's run was cancelled; the same.
    """
    if not modes or not seeds or min(ranks, updates, points) < 1:
        raise InvalidValueError(
            f"at least one mode, seed, rank, update and point, got {len(modes)}, {len(seeds)}, {ranks}, {updates} and "
            f"{points}"
        )
    check_sizes(task, ranks, sizes)
    if step < 0 or (clock == "virtual" and not step):
        raise InvalidValueError(f"a step takes some time, got {step:g} s")
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
    with joined_ranks(
        WORKER, ranks, save=lambda folder: save_delays(delays, folder), report=on_progress, timeout=SILENCE_TIMEOUT
    ) as turns:
        for mode in modes:
            turns.prepare(mode)

        def follow(mode: str, number: int, message: Message) -> None:
            if on_point is not None:
                point = ModePoint(message["seconds"], message["updates"], message["batch_loss"])
                on_point(cast(Mode, mode), seeds[number], point)

        def command(_: str, number: int) -> dict[str, Any]:
            return {"task": task, "sizes": sizes, "step": step, "every": every, "seed": seeds[number]}

        for number in turns.repeat(modes, updates, len(seeds), arguments=command, on_message=follow):
            for mode in modes:
                answers = turns.rounds[mode][-1].answers
                measured = tuple(ModePoint(**each) for each in answers[0]["points"])
                gradients = sum(answer["gradients"] for answer in answers)
                trainings.append(ModeTraining(mode, seeds[number], gradients, measured))
    return ModeComparison(task, ranks, step, turns.device_name, tuple(trainings))
