"""A foreground and a background in two streams of one device, a mechanism of sharing more at a time (figure 11).

The foreground's iteration is some graphs of high priority, launched by this thread; the background's is many small ones
behind a gate, launched by another: the same trainer, background and governor as in a run. Each round runs the
foreground alone and beside each rung, so that a device that grows slower does so for all of them. Iterations in which a
governor gets to know the foreground do not count. All times are of the device and of its clock: on an emulated GPU they
are virtual.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from deeppool.base.sharing import Sharing
from deeppool.base.timeline import COMPUTING
from deeppool.collocation.background_training import BackgroundTraining
from deeppool.collocation.in_process_background import InProcessBackground
from deeppool.device.emulated.device import new_device
from deeppool.device.protocol import Device, Precision
from deeppool.errors import DeeppoolError, RunError
from deeppool.evaluation.experiments.stream_foreground import StreamForeground
from deeppool.execution.iteration_record import IterationTimes
from deeppool.graph.models.workloads import find_workload
from deeppool.job import Job
from deeppool.records.run_record import TimeSummary, summarise
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.governor import DENSE, Governor
from deeppool.scheduling.mechanism_ladder import Rung

WARM_UPS = 20
"""Iterations of the foreground before anything is measured."""


@dataclass(frozen=True, slots=True)
class TwoJobs:
    """Two jobs, and how long each is observed."""

    foreground: str
    background: str = "resnet50"
    foreground_batch: int = 4
    """Small, as on each of many GPUs."""
    precision: Precision = "bf16"
    iterations: int = 256
    """Iterations of the foreground in each round, alone and beside each rung."""
    rounds: int = 2
    alone_seconds: float = 1.0
    """Seconds for which each background is measured alone."""
    probes: int = 0
    """Short graphs with which the foreground's wake-up delay is measured, alone and beside each rung."""


@dataclass(frozen=True, slots=True)
class RungResult:
    """Both jobs beside each other on one rung."""

    rung: str
    granted: str
    """What the background's stream was granted."""
    problem: str | None
    """Reason why a share that was asked for was not granted, or None."""
    foreground: TimeSummary
    slowdown: float
    """Mean iteration time of the foreground relative to alone, minus 1."""
    background_batch: int
    background_alone: float
    """Samples per second without the foreground."""
    background_throughput: float
    """Samples per second beside the foreground."""
    harvest: float
    """Background throughput, as a part of the highest that a background of any rung reaches alone."""
    pieces: int
    """Pieces of a step of the background."""
    wake: TimeSummary | None
    """Of a short graph of the foreground from its launch on an idle stream to its end; None: not measured."""

    @property
    def kept(self) -> float:
        """Foreground throughput, as a part of alone."""
        return 1 / (1 + self.slowdown)


@dataclass(frozen=True, slots=True)
class LadderResult:
    """All rungs beside one foreground."""

    gap: float
    """Seconds without foreground after each iteration: what a burst-parallel plan leaves."""
    alone: TimeSummary
    idle: float
    """Share of the time alone in which no operator of the foreground is on the device."""
    wake: TimeSummary | None
    """As of a rung, alone."""
    rungs: tuple[RungResult, ...]
    left_out: tuple[str, ...]
    """Names of the rungs that failed, or for which there was no time left."""

    @property
    def ranking(self) -> tuple[str, ...]:
        """Names of the rungs by the sum of both throughputs, each as a part of alone; the highest first."""
        return tuple(one.rung for one in sorted(self.rungs, key=lambda one: one.kept + one.harvest, reverse=True))


@dataclass(slots=True)
class _Beside:
    """The background of a rung, and what was measured with it."""

    job: InProcessBackground
    alone: float
    """Samples per second without the foreground."""
    governor: Governor
    times: list[float] = field(default_factory=list)
    """Seconds of the foreground's iterations."""
    wake: list[float] = field(default_factory=list)
    """Seconds of its probes."""
    seconds: float = 0.0
    steps: float = 0.0
    """Steps in those seconds; what is in flight at their end runs alone, and does not count."""
    _begun: int = 0
    """Iterations that the governor has begun."""

    def start(self, foreground: StreamForeground, now: Callable[[], float]) -> None:
        """Forgets all measurements, and lets the governor learn."""
        self.governor, self._begun = Governor(self.job.training.sharing, by_events=True), 0
        if self.job.training.sharing.learns:
            self.run(foreground, DENSE, now)
        self.times, self.wake, self.seconds, self.steps = [], [], 0.0, 0.0

    def probe(self, foreground: StreamForeground, probes: int) -> None:
        """Measures the foreground's wake-up delay beside the background."""
        self.job.begin()
        self.wake += foreground.wake(probes)
        _raise_failure(self.job.rest())

    def run(self, foreground: StreamForeground, iterations: int, now: Callable[[], float]) -> None:
        """Runs both jobs for some iterations.

        Raises:
            RunError: the background failed.
        """
        started = now()
        self.job.begin()
        foreground.start()
        for _ in range(iterations):
            foreground.limits = self.governor.begin(self._begun)
            self._begun += 1
            self._learn(foreground.iterate())
        seconds = now() - started
        done = self.job.rest()
        self._learn(foreground.finish())
        foreground.limits = FREE
        _raise_failure(done)
        ((steps, _),) = done["parts"]
        self.seconds += seconds
        self.steps += steps

    def _learn(self, times: IterationTimes | None) -> None:
        """Learns from the earliest iteration that is not learned yet."""
        if times is not None:
            self.governor.end(*times)
            self.times.append(times[0])


class StreamLadder:
    """All rungs beside one foreground after another. A rung that fails is named, and does not end the others."""

    def __init__(
        self, jobs: TwoJobs, rungs: Mapping[str, Rung], device: Device, may_start: Callable[[], bool] = lambda: True
    ) -> None:
        """Makes all backgrounds, so that nothing is captured beside anything that runs.

        Args:
            jobs: the two jobs.
            rungs: the rungs by name, the lowest first.
            device: runs both.
            may_start: asked before each measurement; False leaves it out.
        """
        self.failed: dict[str, str] = {}
        """Rungs that failed, with the reason."""
        self._jobs, self._rungs, self._device, self._may_start = jobs, rungs, device, may_start
        self._foreground: StreamForeground | None = None
        self._made: dict[str, _Beside] = {}
        for name, rung in rungs.items():
            with self._attempt(name) as may:
                if may:
                    self._made[name] = self._make(rung)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._made.values():
            made.job.close()

    def measure(
        self, foreground: StreamForeground | None = None, gap: float = 0.0, iterations: int | None = None
    ) -> LadderResult:
        """Runs all rungs in interleaved rounds.

        Args:
            foreground: another one than the jobs name, such as a rank of a plan.
            gap: seconds without foreground after each iteration.
            iterations: another number for each round than the jobs'.
        """
        if foreground is None:
            jobs = self._jobs
            foreground = StreamForeground.of_model(jobs.foreground, jobs.foreground_batch, jobs.precision, self._device)
        self._foreground = foreground
        foreground.gap = gap
        with foreground.current():
            return self._measure(foreground, gap, iterations or self._jobs.iterations)

    def _measure(self, foreground: StreamForeground, gap: float, iterations: int) -> LadderResult:
        alone: list[IterationTimes] = []
        wake: list[float] = []
        now = self._device.clock.now
        foreground.repeat(WARM_UPS)
        for name, made in self._made.items():
            with self._attempt(name) as may:
                if may:
                    made.start(foreground, now)
        for number in range(self._jobs.rounds):
            if number and not self._may_start():
                break
            alone += foreground.repeat(iterations)
            wake += foreground.wake(self._jobs.probes)
            for name, made in self._made.items():
                with self._attempt(name) as may:
                    if may:
                        made.run(foreground, iterations, now)
                        made.probe(foreground, self._jobs.probes)
        measured = {name: made for name, made in self._made.items() if made.times and name not in self.failed}
        highest = max((made.alone for made in self._made.values()), default=0.0)
        summary = summarise([seconds for seconds, _ in alone])
        busy = sum(seconds for _, operators in alone for (kind, _), seconds in operators.items() if kind in COMPUTING)
        return LadderResult(
            gap,
            summary,
            1 - busy / sum(seconds + gap for seconds, _ in alone),
            summarise(wake) if wake else None,
            tuple(_result(name, made, summary, highest) for name, made in measured.items()),
            tuple(name for name in self._rungs if name not in measured),
        )

    def _state(self) -> tuple[BackgroundLimits, Operator | None]:
        """Returns the state of the present foreground."""
        return (FREE, None) if self._foreground is None else self._foreground.state()

    @contextmanager
    def _attempt(self, name: str) -> Iterator[bool]:
        """Notes why a rung fails; yields whether it may start at all."""
        try:
            yield name not in self.failed and self._may_start()
        except (DeeppoolError, RuntimeError) as error:
            self.failed[name] = str(error).splitlines()[0]

    def _make(self, rung: Rung) -> _Beside:
        """Makes the background of a rung, and measures it without the foreground: as fast as it can."""
        jobs, device = self._jobs, self._device
        training = stream_background(jobs.background, rung.batch, rung.sharing, device, jobs.precision)
        with device.arithmetic(jobs.precision):
            alone = _throughput(training, device, jobs.alone_seconds)
            job = InProcessBackground(training, device, self._state)
        return _Beside(job, alone, Governor(rung.sharing, by_events=True))


def stream_background(
    model: str, batch: int, sharing: Sharing, device: Device, precision: Precision
) -> BackgroundTraining:
    """Makes the training of a background in a stream of its own.

    Args:
        model: name of a workload.
        batch: samples of a step.
        sharing: mechanisms by which it shares the device.
        device: runs it.
        precision: precision of products and convolutions.
    """
    shape = find_workload(model).inputs[0].shape
    with tempfile.TemporaryDirectory() as folder, device.arithmetic(precision):
        setup = {"job": asdict(Job(model, shape, batch)), "folder": folder, "sharing": asdict(sharing)}
        return BackgroundTraining(setup, device, device.torch_device(), paced=True, precision=precision)


def emulated_ladder(gpu: str, jobs: TwoJobs, rungs: Mapping[str, Rung], gap: float = 0.0) -> LadderResult:
    """Runs all rungs on an emulated GPU of its own, in virtual time and without values.

    Args:
        gpu: name of its data sheet, such as ``h200``.
        jobs: the two jobs.
        rungs: the rungs by name.
        gap: see :meth:`StreamLadder.measure`.
    """
    device = new_device(gpu)
    with device.times_only(), StreamLadder(jobs, rungs, device) as ladder:
        return ladder.measure(gap=gap)


def _raise_failure(done: Mapping[str, Any]) -> None:
    if "why" in done:
        raise RunError(f"beside the foreground: {done['why']}")


def _throughput(training: BackgroundTraining, device: Device, seconds: float) -> float:
    training.step()
    started, before = device.clock.now(), training.samples
    while (now := device.clock.now()) < started + seconds:
        training.step()
    return (training.samples - before) / (now - started)


def _result(name: str, made: _Beside, alone: TimeSummary, highest: float) -> RungResult:
    beside, training = summarise(made.times), made.job.training
    throughput = made.steps * training.batch / made.seconds
    return RungResult(
        rung=name,
        granted=made.job.priority,
        problem=training.shared.problem,
        foreground=beside,
        slowdown=beside.mean / alone.mean - 1,
        background_batch=training.batch,
        background_alone=made.alone,
        background_throughput=throughput,
        harvest=throughput / highest,
        pieces=training.pieces,
        wake=summarise(made.wake) if made.wake else None,
    )
