"""One of two waves on a rank: a replica of the model, its training step, its stream, and the thread that launches."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from deeppool.base.timeline import SpanKind
from deeppool.device.clock import Clock
from deeppool.device.protocol import Stream
from deeppool.execution.span_recorder import RecordedSpan
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.training.step import Batch, Monitor, TrainingStep

WAVES = ("tick", "tock")


class Point:
    """A point of a thread's launches that other threads wait for."""

    def __init__(self, clock: Clock) -> None:
        """Is not reached."""
        self._reached = clock.signal()
        self._stamp: Any = None
        self._error: BaseException | None = None

    def reach(self, stamp: Any, error: BaseException | None = None) -> None:
        """Marks it as reached, at a stamp of the device or by an error; the first call counts."""
        if not self._reached.is_set():
            self._stamp, self._error = stamp, error
            self._reached.set()

    def wait(self) -> Any:
        """Waits until it is reached, and returns the stamp; raises the error of its thread."""
        self._reached.wait()
        if self._error is not None:
            raise self._error
        return self._stamp


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Forward and backward of one iteration, in progress."""

    wave: "Wave"
    batch: Batch
    after: "Pass | None"
    """The iteration before, whose forward and backward come first; None: there is none in progress."""
    forward: Point
    """End of the forward."""
    backward: Point


class Wave:
    """One replica on one rank."""

    def __init__(
        self, name: str, trainer: Trainer, captured: CapturedModel, step: TrainingStep, stream: Stream
    ) -> None:
        """Starts the thread.

        Args:
            name: name of the wave.
            trainer: trainer of the rank.
            captured: the replica.
            step: step of the replica.
            stream: stream of its work.
        """
        self.step, self.stream = step, stream
        step.monitor = _WaveMonitor(name, trainer)
        self._device = trainer.device
        self.values = dict(captured.source.named_parameters()) | dict(captured.source.named_buffers())
        """Parameters and buffers of the replica, by name."""
        trained = set(step.rule.parameters)
        self._parameters = [parameter for parameter in captured.source.parameters() if parameter in trained]
        self.raw = [torch.zeros_like(parameter) for parameter in self._parameters]
        """This rank's own gradients of the replica's last iteration."""
        self._tasks: deque[Pass | None] = deque()
        self._more = self._device.clock.signal()
        self._ended = Point(self._device.clock)
        self._threads = torch.get_num_threads()
        self._thread = self._device.clock.start_thread(self._run, f"{name} wave")

    def start(self, batch: Batch, after: Pass | None) -> Pass:
        """Starts an iteration after another one."""
        clock = self._device.clock
        started = Pass(self, batch, after, Point(clock), Point(clock))
        self._give(started)
        return started

    def _give(self, task: Pass | None) -> None:
        self._tasks.append(task)
        self._more.set()

    def _run(self) -> None:
        # A new thread has its own number of threads, and its own current stream.
        torch.set_num_threads(self._threads)
        with self.stream.current():
            while True:
                while not self._tasks:
                    self._more.wait()
                    self._more.clear()
                task = self._tasks.popleft()
                if task is None:
                    break
                try:
                    self._compute(task)
                except BaseException as error:  # the main thread raises it
                    for point in (task.forward, task.backward):
                        point.reach(None, error)
        self._ended.reach(None)

    def _compute(self, task: Pass) -> None:
        def between() -> None:
            task.forward.reach(self._device.stamp())
            if task.after is not None:
                self.stream.wait(task.after.backward.wait())

        if task.after is not None:
            self.stream.wait(task.after.forward.wait())
        self.step.compute([task.batch], before_backward=between)
        task.backward.reach(self._device.stamp())

    def average(self, other: Sequence[torch.Tensor] | None) -> None:
        """Keeps the gradients, and replaces them by their mean with others; None: there are no others."""
        # A parameter that no gradient reaches has none in either wave: with one of zeros weights would decay.
        reached = [index for index, parameter in enumerate(self._parameters) if parameter.grad is not None]
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_copy_([self.raw[index] for index in reached], gradients)
        if other is not None:
            torch._foreach_lerp_(gradients, [other[index] for index in reached], 0.5)

    def update(self) -> None:
        """Sums the gradients over all ranks, and updates the replica."""
        self.step.finish_sync()
        self.step.update()

    def skip_update(self) -> None:
        """Moves the learning rate on past an update that the other wave has made."""
        rule = self.step.rule
        if rule.schedule is not None:
            # The tock wave's schedule moves on before its first update, of which torch would warn. Its own mark is the
            # only way: a step without gradients may change state, and filters of warnings are those of all threads.
            rule.optimizer._opt_called = True  # type: ignore[union-attr]
            rule.schedule.step()

    def state(self) -> dict[str, Any]:
        """Returns the state of the optimizer and of the schedule."""
        rule = self.step.rule
        return {
            "optimizer": None if rule.optimizer is None else rule.optimizer.state_dict(),
            "schedule": None if rule.schedule is None else rule.schedule.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what :meth:`state` returned."""
        rule = self.step.rule
        if rule.optimizer is not None and state["optimizer"] is not None:
            rule.optimizer.load_state_dict(state["optimizer"])
        if rule.schedule is not None and state["schedule"] is not None:
            rule.schedule.load_state_dict(state["schedule"])

    def close(self) -> None:
        """Ends the thread, once its work is launched."""
        self._give(None)
        self._ended.wait()
        self._thread.join()
        self.step.close()


class _WaveMonitor(Monitor):
    """Records spans of a wave. Those of its thread are named by the wave; the rank's activity is the main thread's."""

    def __init__(self, name: str, trainer: Trainer) -> None:
        self._name, self._trainer = name, trainer

    def span(self, kind: SpanKind, part: int, name: str) -> AbstractContextManager[None]:
        if kind in ("forward", "backward"):
            return self._computing(kind, part, name)
        return self._trainer.span(kind, part, f"{name} ({self._name})")

    @contextmanager
    def _computing(self, kind: SpanKind, part: int, name: str) -> Iterator[None]:
        clock = self._trainer.clock
        started = clock.now()
        yield
        self._trainer.recorded.append(RecordedSpan(kind, part, f"{name} ({self._name})", started, clock.now()))
