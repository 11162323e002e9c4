"""Two jobs on one device, a mechanism more at a time, as in figure 11 of DeepPool's paper.

The foreground's iteration is some graphs of high priority, launched by this thread; the background's is many small ones
behind a gate, launched by another: the same trainer and the same background as in a run. Each round runs the foreground
alone and beside each rung, so that a device that grows slower does so for all of them. Times are the device's.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

import deeppool as dp
from deeppool.base.sharing import POLICIES, Sharing
from deeppool.collocation.background_training import BackgroundTraining
from deeppool.collocation.in_process_background import InProcessBackground
from deeppool.collocation.pieces import stage_of
from deeppool.device.protocol import Device, Precision
from deeppool.errors import DeeppoolError, RunError
from deeppool.execution.communicator import SingleRank
from deeppool.execution.foreground_control import IterationTimes
from deeppool.execution.foreground_phases import ForegroundPhases
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.placement import place_model
from deeppool.graph.models.workloads import find_workload
from deeppool.job import Job
from deeppool.scheduling.background_limits import FREE, BackgroundLimits, Operator
from deeppool.scheduling.governor import Governor
from deeppool.training.synthetic_task import SyntheticTask
from deeppool.training.training_job import Training

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
    gaps: tuple[float, ...] = (0.0, 0.01)
    """Seconds without foreground after each iteration: what a burst-parallel plan leaves."""
    iterations: int = 256
    """In a row; a governor takes some tens to get to know the foreground."""
    rounds: int = 2
    alone_seconds: float = 1.0
    """That a background is measured for by itself."""


SETTINGS = tuple(Setting(model) for model in ("vgg16", "wide_resnet101_2", "inception_v3"))
QUICK = (
    Setting(
        "benchmarks.gpu.collocation:tiny", "benchmarks.gpu.collocation:tiny", 2, (2, 1), "fp32", (0.0,), 20, 1, 0.05
    ),
)


def capture(name: str, place: torch.device) -> CapturedModel:
    torch.manual_seed(0)
    workload = find_workload(name)
    return place_model(dp.capture(workload.build(), workload.inputs[0].shape), place)


def tiny() -> nn.Module:
    """A model for a dry run."""
    return nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(6)))


tiny.input_shape = (64,)


class Foreground:
    """A training in stages whose iterations are timed."""

    def __init__(self, setting: Setting, device: Device) -> None:
        """Captures it on a stream of high priority."""
        place = device.torch_device()
        captured = capture(setting.foreground, place)
        edges = sorted({round(edge) for edge in np.linspace(0, len(captured.graph.layers), STAGES + 1)})
        stages = [stage_of(captured, range(first, last), setting.batch) for first, last in itertools.pairwise(edges)]
        self._data = [
            tensor.to(place) for tensor in SyntheticTask(captured, setting.batch, 0).shard(0, 0, setting.batch)
        ]
        self._device, self._stream, self._precision = device, device.stream("high"), setting.precision
        rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=1e-3, momentum=0.9))
        with self._stream.current(), device.arithmetic(setting.precision):
            self._trainer = Trainer(captured, stages, SingleRank(), rule, setting.precision)
        self._trainer.watcher = self._phases = ForegroundPhases(device)
        self.orders, self.gap = FREE, 0.0

    def start(self) -> None:
        """Begins the first of some iterations."""
        with self._stream.current():
            self._phases.start()

    def iterate(self) -> IterationTimes | None:
        """Launches an iteration; returns the times of the one before, or with gaps its own.

        Without gaps the device always has the next iteration: launching, waiting and launching again would leave it
        idle in between, and a background harmless there.
        """
        with self._stream.current(), self._device.arithmetic(self._precision):
            self._trainer.iterate([lambda samples: tuple(self._data)])
            measured = self._phases.lap()
            if self.gap:
                measured = self._phases.finish()
                time.sleep(self.gap)
                self._phases.start()
        return measured

    def finish(self) -> IterationTimes | None:
        """Times of the last iteration, unless :meth:`iterate` has returned them."""
        return self._phases.finish()

    def repeat(self, iterations: int) -> list[float]:
        """Seconds of some iterations in a row."""
        self.start()
        found = [self.iterate() for _ in range(iterations)]
        return [times[0] for times in (*found, self.finish()) if times is not None]

    def look(self) -> tuple[BackgroundLimits, Operator | None]:
        """For a background: the orders, and the operator that the device runs."""
        return self.orders, self._phases.doing


@dataclass
class Background:
    """A rung's."""

    job: InProcessBackground
    governor: Governor
    samples_alone: float
    problem: str | None
    times: list[float] = field(default_factory=list)
    """Of the foreground beside it."""
    seconds: float = 0.0
    steps: float = 0.0
    """Steps in those seconds; what is in flight at their end runs alone, and does not count."""

    @property
    def samples(self) -> float:
        return self.steps * self.job.training.batch

    def learn(self, times: IterationTimes | None) -> None:
        """From the earliest iteration that it has not learned from."""
        if times is not None:
            self.governor.end(*times)
            self.times.append(times[0])

    def run(self, foreground: Foreground, iterations: int) -> None:
        """Beside the foreground."""
        first = len(self.times)
        started = time.perf_counter()
        self.job.begin()
        foreground.start()
        for number in range(first, first + iterations):
            foreground.orders = self.governor.begin(number)
            self.learn(foreground.iterate())
        seconds = time.perf_counter() - started
        done = self.job.rest()
        self.learn(foreground.finish())
        foreground.orders = FREE
        if "why" in done:
            raise RunError(f"beside the foreground: {done['why']}")
        ((steps, _),) = done["parts"]
        self.seconds += seconds
        self.steps += steps


class Climb:
    """The rungs of one setting."""

    def __init__(self, setting: Setting, device: Device, ends: float) -> None:
        """Nothing starts after ``ends`` on the monotonic clock."""
        self.setting, self.device, self.ends = setting, device, ends
        self.failed: dict[str, str] = {}
        self.made: dict[str, Background] = {}

    def measure(self) -> Iterator[dict[str, Any]]:
        """The entry of the summary, again after each gap. A rung that fails is named, and does not end the others."""
        setting, gaps = self.setting, list[dict[str, Any]]()
        result = {"setting": asdict(setting), "gaps": gaps, "failed": self.failed}
        yield result
        foreground = Foreground(setting, self.device)
        # All captures before anything runs beside anything.
        for name, rung in LADDER.items():
            self.attempt(name, lambda name=name, rung=rung: self.make(name, *rung, foreground))
        foreground.repeat(COLD)
        for gap in setting.gaps:
            if time.monotonic() < self.ends:
                foreground.gap = gap
                gaps.append(self.climb(foreground))
                yield result

    def climb(self, foreground: Foreground) -> dict[str, Any]:
        """All rungs interleaved."""
        alone: list[float] = []
        rungs = {name: rung for name, rung in self.made.items() if name not in self.failed}
        for rung in rungs.values():
            rung.times, rung.seconds, rung.steps, rung.governor = [], 0.0, 0.0, Governor(rung.job.training.sharing)
        for number in range(self.setting.rounds):
            if number and time.monotonic() >= self.ends:
                break
            alone += foreground.repeat(self.setting.iterations)
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

    def make(self, name: str, sharing: Sharing, smaller: bool, foreground: Foreground) -> None:
        """Makes the background of a rung, and measures it alone: as fast as it can, on the whole device."""
        setting, place = self.setting, self.device.torch_device()
        batch = setting.background_batches[smaller]
        shape = find_workload(setting.background).inputs[0].shape
        with tempfile.TemporaryDirectory() as folder, self.device.arithmetic(setting.precision):
            setup = {
                "job": asdict(Job(setting.background, shape, batch)),
                "folder": folder,
                "sharing": asdict(sharing),
            }
            training = BackgroundTraining(setup, self.device, place, paced=True, precision=setting.precision)
            training.step()
            started, before = time.perf_counter(), training.samples
            while time.perf_counter() < started + setting.alone_seconds:
                training.step()
            alone = (training.samples - before) / (time.perf_counter() - started)
            job = InProcessBackground(training, self.device, foreground.look)
        self.made[name] = Background(job, Governor(sharing), alone, training.shared.problem)


def entry(name: str, rung: Background, alone: dict[str, float]) -> dict[str, Any]:
    beside, harvested = summary(rung.times), rung.samples / rung.seconds
    return {
        "rung": name,
        "problem": rung.problem,
        "granted": rung.job.priority,
        "foreground": beside,
        "slowdown": beside["mean"] / alone["mean"] - 1,
        "p99_inflation": beside["p99"] / alone["p99"] - 1,
        "background_batch": rung.job.training.batch,
        "background_samples_per_second": harvested,
        "background_samples_per_second_alone": rung.samples_alone,
        "harvest": harvested / rung.samples_alone if rung.samples_alone else None,
        "pieces": rung.job.training.pieces,
    }


def summary(times: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return {"p50": float(p50), "p99": float(p99), "mean": statistics.fmean(times)}
