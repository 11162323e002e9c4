"""Two jobs on one device, a mechanism more at a time, as in figure 11 of DeepPool's paper.

The foreground's iteration is some graphs of high priority, launched by this thread; the background's is many small ones
behind a gate, launched by a lane. Each round runs the foreground alone and beside each rung, so that a device that
grows slower does so for all of them. Times are the device's.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

import deeppool as dp
from deeppool.base.sharing import POLICIES, Sharing
from deeppool.collocation.captured_step import CapturedStep
from deeppool.collocation.piece_launcher import LaunchedPiece, PieceLauncher, time_pieces
from deeppool.device.protocol import Device, Launch, Precision, Stream
from deeppool.device.sm_share import sm_share
from deeppool.errors import DeeppoolError, RunError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.models.workloads import find_workload
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.gate import Gate
from deeppool.scheduling.governor import Governor
from deeppool.training.synthetic_task import SyntheticTask

# Each adds a mechanism to those above it; the last two are not in the paper. True: a smaller background batch.
LADDER: dict[str, tuple[Sharing, bool]] = {
    "naive": (Sharing(priority="normal"), False),
    "+ priority": (Sharing(), False),
    "+ pacing": (POLICIES["paced"], False),
    "+ feedback": (POLICIES["feedback"], False),
    "+ smaller batch": (POLICIES["feedback"], True),
    "+ SM share 25 %": (replace(POLICIES["feedback"], share=0.25), True),
    "+ bound 1 %": (replace(POLICIES["feedback"], max_slowdown=0.01), True),
}
Made = TypeVar("Made")
STAGES = 8
"""Of the foreground: operators that the feedback tells apart."""
COLD = 20
"""Iterations before anything is measured."""
POLL_SECONDS = 2e-5


@dataclass(frozen=True)
class Setting:
    """Two jobs, and how long each is looked at."""

    foreground: str
    background: str = "resnet50"
    batch: int = 4
    """Of the foreground: small, as on each of many GPUs."""
    background_batches: tuple[int, int] = (32, 8)
    """Ordinary and smaller."""
    precision: Precision = "bf16"
    pieces: int = 32
    """Into which forward and backward of the background are cut, each."""
    gaps: tuple[float, ...] = (0.0, 0.01)
    """Seconds without foreground after each iteration: what a burst-parallel plan leaves."""
    iterations: int = 256
    """In a row; a governor takes some tens to get to know the foreground."""
    rounds: int = 2
    alone_seconds: float = 1.0
    """That a background is measured for by itself."""


SETTINGS = tuple(Setting(model) for model in ("vgg16", "wide_resnet101_2", "inception_v3"))
QUICK = (Setting("tiny", "tiny", 2, (2, 1), "fp32", 2, (0.0,), 20, 1, 0.05),)


class Job:
    """A training whose step is captured in pieces on a stream."""

    def __init__(
        self,
        name: str,
        batch: int,
        stages: int,
        precision: Precision,
        device: Device,
        stream: Stream,
        kept: object = None,
    ) -> None:
        """Captures it; the stream lives no longer than what is ``kept``."""
        self._kept = kept
        place = device.torch_device()
        captured = capture(name, place)
        count = len(captured.graph.layers)
        edges = sorted({round(edge) for edge in np.linspace(0, count, stages + 1)})
        cuts = [range(first, last) for first, last in itertools.pairwise(edges)]
        data = [tensor.to(place) for tensor in SyntheticTask(captured, batch, 0).shard(0, 0, batch)]
        optimizer = torch.optim.SGD(captured.program.parameters(), lr=1e-3, momentum=0.9)
        self.batch, self.stream, order = batch, stream, range(len(cuts))
        with stream.current(), device.arithmetic(precision):
            self.step = CapturedStep(captured, cuts, data, optimizer, precision)
            self.works = self.step.capture(device)
        device.synchronize()
        self.operators: tuple[Operator, ...] = (
            *(("forward", stage) for stage in order),
            *(("backward", stage) for stage in reversed(order)),
            ("update", len(cuts) - 1),
        )


def capture(name: str, place: torch.device) -> CapturedModel:
    torch.manual_seed(0)
    if name == "tiny":
        return dp.capture(nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(6))).to(place), (64,))
    workload = find_workload(name)
    return dp.capture(workload.build().to(place), workload.inputs[0].shape)


class Foreground:
    """A job whose iterations are timed."""

    def __init__(self, job: Job) -> None:
        self._job, self.orders, self.gap = job, FREE, 0.0
        self._launches: tuple[tuple[Operator, Launch], ...] = ()

    def iterate(self) -> tuple[float, dict[Operator, float]]:
        """Seconds of an iteration, and of each operator."""
        self._launches = ()
        for operator, work in zip(self._job.operators, self._job.works, strict=True):
            self._launches = (*self._launches, (operator, self._job.stream.launch(work)))
        first, last = self._launches[0][1], self._launches[-1][1]
        while not last.done():
            time.sleep(POLL_SECONDS)
        if self.gap:
            time.sleep(self.gap)
        operators = {operator: launch.seconds() for operator, launch in self._launches}
        return last.device.seconds(first.start, last.end), operators

    def look(self) -> tuple[BackgroundLimits, Operator | None]:
        """For a lane: the orders, and the first operator that the device has not done."""
        return self.orders, next((operator for operator, launch in self._launches if not launch.done()), None)


@dataclass
class Background:
    """A rung's."""

    pieces: tuple[LaunchedPiece, ...]
    lane: PieceLauncher
    governor: Governor
    batch: int
    samples_alone: float
    problem: str | None
    times: list[float] = field(default_factory=list)
    """Of the foreground beside it."""
    seconds: float = 0.0
    finished: int = 0
    """Pieces in those seconds; what is in flight at their end runs alone, and does not count."""

    @property
    def samples(self) -> float:
        return self.finished / len(self.pieces) * self.batch

    def run(self, foreground: Foreground, iterations: int) -> None:
        """Beside the foreground."""
        started, before = time.perf_counter(), self.lane.finished
        with self.lane.running(self.pieces):
            for _ in range(iterations):
                foreground.orders = self.governor.begin(len(self.times))
                seconds, operators = foreground.iterate()
                self.governor.end(seconds, operators)
                self.times.append(seconds)
            self.seconds += time.perf_counter() - started
            self.finished += self.lane.finished - before
            foreground.orders = FREE
        if self.lane.error is not None:
            raise RunError(f"beside the foreground: {self.lane.error}") from self.lane.error


class Climb:
    """The rungs of one setting."""

    def __init__(self, setting: Setting, device: Device, ends: float) -> None:
        """Nothing starts after ``ends`` on the monotonic clock."""
        self.setting, self.device, self.ends = setting, device, ends
        self.failed: dict[str, str] = {}
        self.jobs: dict[tuple[Any, ...], tuple[Job, str | None]] = {}
        """By batch, priority and share; and what could not be had."""

    def measure(self) -> Iterator[dict[str, Any]]:
        """The entry of the summary, again after each gap. A rung that fails is named, and does not end the others."""
        setting, gaps = self.setting, list[dict[str, Any]]()
        result = {"setting": asdict(setting), "gaps": gaps, "failed": self.failed}
        yield result
        job = Job(setting.foreground, setting.batch, STAGES, setting.precision, self.device, self.device.stream("high"))
        foreground = Foreground(job)
        # All captures before anything runs beside anything.
        for name, rung in LADDER.items():
            self.attempt(name, lambda rung=rung: self.job(*rung))
        for _ in range(COLD):
            foreground.iterate()
        for gap in setting.gaps:
            if time.monotonic() < self.ends:
                foreground.gap = gap
                gaps.append(self.climb(foreground))
                yield result

    def climb(self, foreground: Foreground) -> dict[str, Any]:
        """All rungs interleaved."""
        alone: list[float] = []
        made = {
            name: self.attempt(name, lambda rung=rung: self.background(*rung, foreground))
            for name, rung in LADDER.items()
            if name not in self.failed
        }
        rungs = {name: rung for name, rung in made.items() if rung is not None}
        for number in range(self.setting.rounds):
            if number and time.monotonic() >= self.ends:
                break
            alone += [foreground.iterate()[0] for _ in range(self.setting.iterations)]
            for name, rung in rungs.items():
                if name not in self.failed:
                    self.attempt(name, lambda rung=rung: rung.run(foreground, self.setting.iterations))
        measured = {name: rung for name, rung in rungs.items() if rung.times and name not in self.failed}
        entries = [entry(name, rung, summary(alone)) for name, rung in measured.items()]
        left_out = [name for name in LADDER if name not in measured]
        return {"gap": foreground.gap, "alone": summary(alone), "rungs": entries, "left_out": left_out}

    def attempt(self, name: str, make: Callable[[], Made]) -> Made | None:
        """What a rung needs, unless there is no time left, or it cannot be had."""
        if time.monotonic() >= self.ends:
            return None
        try:
            return make()
        except (DeeppoolError, RuntimeError) as error:
            self.failed[name] = str(error).splitlines()[0]
            return None

    def job(self, sharing: Sharing, smaller: bool) -> tuple[Job, str | None]:
        """Made once for all rungs that can use it."""
        setting, batch = self.setting, self.setting.background_batches[smaller]
        key = batch, sharing.priority, sharing.share
        if key not in self.jobs:
            part, problem = None, None
            if sharing.share is not None:
                part = sm_share(self.device, sharing.share)
                stream, problem = part.stream, part.problem
            else:
                stream = self.device.stream("high" if sharing.priority == "normal" else "low")
            made = Job(setting.background, batch, setting.pieces, setting.precision, self.device, stream, part)
            self.jobs[key] = made, problem
        return self.jobs[key]

    def background(self, sharing: Sharing, smaller: bool, foreground: Foreground) -> Background:
        """A rung's, measured alone first."""
        job, problem = self.job(sharing, smaller)
        pieces = time_pieces(job.works, job.stream, self.device)
        alone = PieceLauncher(job.stream, Gate(Sharing(pieces=2)), lambda: (FREE, None))
        started = time.perf_counter()
        with alone.running(pieces):
            time.sleep(self.setting.alone_seconds)
        if alone.error is not None:
            raise RunError(f"alone: {alone.error}") from alone.error
        samples = alone.finished / len(pieces) * job.batch / (time.perf_counter() - started)
        lane = PieceLauncher(job.stream, Gate(sharing), foreground.look)
        return Background(pieces, lane, Governor(sharing), job.batch, samples, problem)


def entry(name: str, rung: Background, alone: dict[str, float]) -> dict[str, Any]:
    beside, harvested = summary(rung.times), rung.samples / rung.seconds
    return {
        "rung": name,
        "problem": rung.problem,
        "foreground": beside,
        "slowdown": beside["mean"] / alone["mean"] - 1,
        "p99_inflation": beside["p99"] / alone["p99"] - 1,
        "background_batch": rung.batch,
        "background_samples_per_second": harvested,
        "background_samples_per_second_alone": rung.samples_alone,
        "harvest": harvested / rung.samples_alone if rung.samples_alone else None,
        "median_piece_seconds": statistics.median(piece.expected for piece in rung.pieces),
    }


def summary(times: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return {"p50": float(p50), "p99": float(p99), "mean": statistics.fmean(times)}
