"""Measures the conditions of a run in interleaved rounds.

All conditions are measured in the same processes and in short rounds, so that a machine that becomes slower during the
run affects every condition alike:

    warm-up │ idle cores  active cores  collocated  background alone │ … as many rounds as fit
    on GPUs │             foreground alone  collocated  background alone │ …

Where a controller limits the background, it first learns during iterations that are not counted.

*Active cores* is the foreground alone with an idle-priority spinner on each core. It is the baseline: a foreground with
gaps runs up to 10 % faster when anything at all keeps its core awake. A GPU does not sleep so: there the foreground
alone is one condition, without spinners.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from deeppool.base.live_sample import BESIDE
from deeppool.base.run_control import RunControl
from deeppool.base.sharing import Sharing
from deeppool.collocation.background_jobs import WorkDone
from deeppool.collocation.collocated_processes import CollocatedProcesses
from deeppool.collocation.condition_results import BoundResults, ConditionResults, assign_to_bounds
from deeppool.collocation.sample_publisher import SamplePublisher
from deeppool.execution.measurements import iteration_times
from deeppool.job import Progress
from deeppool.processes.managed_process import Message
from deeppool.scheduling.governor import DENSE

WARM_UP_STEPS = 3
MIN_ROUNDS = 3
ROUND_SECONDS, ROUND_STEPS = 0.5, 4
"""Length of one condition in a round; longer only where a background step needs it. What slows a shared machine down
lasts for a second or a few, so conditions measured further apart are hard to compare (measured in
``benchmarks/collocation-ladder``); shorter ones run largely with cold caches.
"""
BACKGROUND_STEPS = 2
"""Minimum background steps per round: the end of each round waits for the step in progress."""
BLOCK_SECONDS = 8.0
"""Rounds closer than this are treated as autocorrelated in confidence intervals."""
POLL_SECONDS = 0.5
"""Interval between two polls of the background while the foreground rests."""


def iterations_per_round(total: int, seconds: float, step: float = 0.0) -> list[int]:
    """Splits the iterations of a condition into rounds.

    Args:
        total: iterations of the condition.
        seconds: expected time of one iteration.
        step: seconds of one background step.
    """
    wanted = max(ROUND_STEPS, math.ceil(max(ROUND_SECONDS, BACKGROUND_STEPS * step) / seconds))
    rounds = min(total, max(MIN_ROUNDS, total // wanted))
    return [total // rounds + (index < total % rounds) for index in range(rounds)]


def rounds_per_block(rounds: int, seconds: float) -> int:
    """Returns the consecutive rounds treated as autocorrelated; leaves at least three blocks.

    Args:
        rounds: rounds of the run.
        seconds: time of all rounds together.
    """
    return max(1, min(math.ceil(BLOCK_SECONDS * rounds / seconds), rounds // MIN_ROUNDS))


@dataclass(slots=True)
class RunResults:
    """Results of all conditions of one run."""

    bounds: list[BoundResults]
    """Collocated iterations by the bound in force; the last one is in force now."""
    idle_cores: ConditionResults = field(default_factory=ConditionResults)
    active_cores: ConditionResults = field(default_factory=ConditionResults)
    collocated: ConditionResults = field(default_factory=ConditionResults)
    background_alone: WorkDone = field(default_factory=WorkDone)
    losses: list[float] = field(default_factory=list)
    last: list[Message] = field(default_factory=list)
    """Answers of the ranks for the last collocated round; without a background, for the last round."""
    rounds_per_block: int = 1
    """Consecutive rounds treated as autocorrelated."""


class InterleavedMeasurement:
    """Measures the conditions of one run in interleaved rounds; its ranks are ready."""

    def __init__(
        self,
        processes: CollocatedProcesses,
        *,
        sharing: Sharing | None,
        publisher: SamplePublisher,
        run_control: RunControl,
        report: Progress,
    ) -> None:
        """Measures nothing yet.

        Args:
            processes: ranks, and background and spinners where there is a background job, ready or not.
            sharing: mechanisms by which the background shares devices with the ranks.
            publisher: publishes every iteration as a sample.
            run_control: source of new bounds.
            report: see :data:`deeppool.job.Progress`.
        """
        self._ranks, self._background, self._spinners = processes.ranks, processes.background, processes.spinners
        self._learns = sharing is not None and sharing.learns
        self._publisher, self._run_control, self._report = publisher, run_control, report
        self._progress = 0.0
        self._current_work: Callable[[], WorkDone] | None = None
        """Where the work that the background does now is added."""
        self._trained = -math.inf
        """Clock at which the last rank ended the last iterations; a slow sample is one reason to notice it late."""
        self.results = RunResults([BoundResults(None if sharing is None else sharing.max_slowdown, 0.0)])

    def measure(self, seconds: float | None, steps: int | None) -> RunResults:
        """Warms up, waits for the background, runs the rounds and returns their results.

        Raises:
            RunError: the background cannot start.
        """
        self._report("warming up", self._progress)
        # By itself: an emulated rank that is late at first would not wait in the next ones.
        self._train(1)
        # After two, ranks on GPUs hold the memory that they need, and a background may have the rest.
        self._train(1)
        if self._background is not None:
            self._report(f"waiting for the first step of {self._background.job.name} in the background", self._progress)
            self._background.wait_until_ready()
        warm_up = self._train(WARM_UP_STEPS - 1)
        iteration = min(iteration_times(warm_up))
        if self._learns:
            self._report("learning what the background costs", self._progress)
            self._publisher.condition = "learning"
            with self._background_trains(WorkDone):
                self._train(DENSE)
        conditions = 1 if self._background is None else 3 if self._spinners is None else 4
        budget = (30.0 if seconds is None else seconds) / conditions
        total = steps or max(2, int(budget / iteration))
        counts = iterations_per_round(total, iteration, self._background.step_seconds if self._background else 0.0)
        self.results.rounds_per_block = rounds_per_block(len(counts), total * iteration * conditions)
        for index, count in enumerate(counts):
            self._progress = 0.1 + 0.9 * index / len(counts)
            self._report(f"measuring, round {index + 1} of {len(counts)}", self._progress)
            self._measure_round(count, count * iteration)
        self._report("done", 1.0)
        return self.results

    def _measure_round(self, count: int, seconds: float) -> None:
        results, publisher = self.results, self._publisher
        if self._spinners is not None:
            publisher.condition = "asleep"
            results.idle_cores.add(self._train(count))
        publisher.condition = "awake"
        with nullcontext() if self._spinners is None else self._spinners.spinning():
            results.last = self._train(count)
        results.active_cores.add(results.last)
        if self._background is None:
            assign_to_bounds(results.last, results.bounds)
            return
        publisher.condition = "collocated"
        with self._background_trains(lambda: results.bounds[-1].work):
            results.last = self._train(count)
        results.collocated.add(results.last)
        assign_to_bounds(results.last, results.bounds)
        publisher.condition = "background alone"
        with self._background_trains(lambda: results.background_alone):
            self._rest(seconds)
        results.background_alone.end_round(len(results.bounds[0].rounds) - 1)

    def _rest(self, seconds: float) -> None:
        """Lets the foreground rest and polls the background."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            self._ranks.sleep(min(left, POLL_SECONDS))
            self._publisher.publish_background()
            self._apply_bound()

    @contextmanager
    def _background_trains(self, work: Callable[[], WorkDone]) -> Iterator[None]:
        """Lets the background train during the block.

        Args:
            work: returns where its work is added, at the end of the block and whenever the bound changes.
        """
        assert self._background is not None
        started = time.perf_counter()
        self._background.begin()
        self._current_work = work
        yield
        self._current_work = None
        self._background.measure(work(), started, self._trained if self._trained > started else None)

    def _train(self, count: int) -> list[Message]:
        condition = self._publisher.condition
        answers = self._ranks.train(
            count, self._on_iteration, collocated=condition in BESIDE, awake=condition == "awake"
        )
        self._trained = max(answer["started"] + answer["wall"] for answer in answers)
        # Each rank reports its part of the mean over the global batch; ranks outside the last stage report 0.
        self.results.losses += [sum(parts) for parts in zip(*(answer["losses"] for answer in answers), strict=True)]
        return answers

    def _on_iteration(self, message: Message) -> None:
        self._report(f"iteration {message['step']}", self._progress)
        self._publisher.publish_iteration(message)
        self._apply_bound()

    def _apply_bound(self) -> None:
        """Sends a new bound to the ranks; later measurements are assigned to it."""
        bound = self._run_control.take()
        if bound is None:
            return
        if self._current_work is not None and self._background is not None:
            self._background.split(self._current_work())
        self.results.bounds.append(BoundResults(bound, self._publisher.now))
        self._ranks.change_bound(bound, len(self.results.bounds) - 1)
