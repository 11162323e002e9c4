"""dp.start: runs a long call in a thread and returns a handle that shows, watches and cancels it."""

import atexit
import functools
import importlib
import inspect
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import Future
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from deeppool.base.arguments import typed
from deeppool.base.cancellation import Cancellation
from deeppool.base.interruption import interrupted
from deeppool.base.live_sample import LiveSample
from deeppool.base.run_control import RunControl
from deeppool.errors import InvalidValueError, RunCancelledError
from deeppool.records.training_record import Metrics
from deeppool.units import format_seconds

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
State = Literal["running", "done", "failed", "cancelled"]

_LOG = logging.getLogger(__name__)

VIEW = "deeppool.widgets.run_panel"
"""Module that shows a run in a notebook. Named, not imported: widgets start runs, so they lie in a row above."""
SAMPLES = 20_000
"""Samples that a handle keeps: minutes of a small model, hours of a large one."""
EXIT_SECONDS = 5.0
"""Time that an exiting process gives its runs to end."""

LEAST_PROGRESS, LEAST_SECONDS = 0.05, 2.0
"""Part of a run done since its start-up, and seconds since then, after which the time to its end is estimated."""


@typed
def start(
    function: Callable[Parameters, Result], /, *arguments: Parameters.args, **options: Parameters.kwargs
) -> "RunHandle[Result]":
    """Starts a call in a thread and returns a handle on it.

        training = dp.start(dp.train, plan, job, steps=1000, checkpoints="checkpoints")
        training                   # in a notebook: progress and loss, live, and a button that cancels
        training.metrics[-1]       # so far
        training.cancel()          # ends every process
        record = training.result()

    A run ends with this process, however that ends: wait with ``result()`` for what must finish. From another notebook
    or a terminal :func:`deeppool.running` lists it and can stop it.

    Args:
        function: one that takes ``on_progress``: ``dp.train``, ``dp.launch``, ``dp.capture``, ``dp.profile``,
            ``dp.estimate``, ``dp.calibrate``, ``dp.advise``, ``dp.scaling``, ``dp.simulate_cluster``,
            ``dp.measure_network``, ``dp.measure_interference``, ``dp.measure_transfers``, ``dp.measure_jobs``,
            ``dp.compare_orders``, ``dp.compare_techniques``, ``dp.compare_strategies``, or ``train`` or ``measure`` of
            a ``dp.CrossoverScheduler``.
        arguments: positional arguments of the function.
        options: keyword arguments of the function; callbacks are called in the thread of the run.

    Raises:
        InvalidValueError: the function reports no progress, so it can be neither shown nor cancelled.
        TypeError: the function does not take these arguments.
    """
    signature = inspect.signature(function)
    if "on_progress" not in signature.parameters:
        raise InvalidValueError(
            f"{_name(function)} reports no progress, so it cannot be followed or cancelled "
            "(start takes functions with on_progress, such as dp.train: help(dp.start) lists them)"
        )
    signature.bind(*arguments, **options)
    return RunHandle(function, arguments, options, signature.parameters.keys())


class RunHandle(Generic[Result]):
    """Handle on a call in progress, made by :func:`deeppool.start`. It prints itself in a line."""

    def __init__(
        self, function: Callable[..., Result], arguments: tuple[Any, ...], options: dict[str, Any], takes: Set[str]
    ) -> None:
        """Starts the thread; ``takes`` are the names of the function's parameters."""
        self.name = _name(function)
        self.doing = "starting"
        """What the run does now, in words."""
        self.progress = 0.0
        """Share that is done, from 0 to 1."""
        self._metrics: list[Metrics] = []
        self._samples: deque[LiveSample] = deque(maxlen=SAMPLES)
        self._run_control = options.get("run_control") or RunControl()
        self._cancellation = Cancellation()
        self._future: Future[Result] = Future()
        self._started, self._ended = time.monotonic(), 0.0
        self._work_began: tuple[float, float] | None = None
        """Clock and share at the first report of progress: a start-up says nothing of what follows."""
        self._watchers: list[Callable[[], None]] = []
        options = {**options, "on_progress": self._wrap(options.get("on_progress"), self._on_progress)}
        if "on_metrics" in takes:
            options["on_metrics"] = self._wrap(options.get("on_metrics"), self._on_metrics)
        if "on_sample" in takes:
            options["on_sample"] = self._wrap(options.get("on_sample"), self._on_sample)
        if "run_control" in takes:
            options["run_control"] = self._run_control
        else:
            self._run_control.refuse(f"{self.name} holds none while it runs (dp.launch and dp.train do)")
        # A daemon, so that a kernel that is shut down does not wait for it.
        self._thread = threading.Thread(
            target=self._run, args=(function, arguments, options), name=f"deeppool {self.name}", daemon=True
        )
        _LIVE.add(self)
        self._thread.start()

    @property
    def state(self) -> State:
        """Whether the run is in progress, and how it ended."""
        if not self._future.done():
            return "running"
        error = self._future.exception()
        return "done" if error is None else "cancelled" if isinstance(error, RunCancelledError) else "failed"

    @property
    def metrics(self) -> tuple[Metrics, ...]:
        """Metrics of every update so far; empty where the function does not train."""
        return tuple(self._metrics)

    @property
    def samples(self) -> tuple[LiveSample, ...]:
        """Samples of the latest :data:`SAMPLES` iterations; empty where the function is not ``dp.launch``."""
        # The copy is one step under the interpreter's lock.
        return tuple(self._samples.copy())

    @property
    def bound(self) -> float | None:
        """Bound on the foreground's mean slowdown, as last requested: 0.03 is 3 %."""
        return self._run_control.bound

    @property
    def bound_refusal(self) -> str | None:
        """Reason why :meth:`change_bound` would be refused; None: it would not."""
        return self._run_control.refusal

    def change_bound(self, max_slowdown: float) -> None:
        """Changes the bound on the foreground's slowdown of a ``dp.launch`` or ``dp.train``: 0.03 is 3 %.

        The ranks apply it before one of their next collocated iterations. The record of ``dp.launch`` separates what
        was measured under each bound.

        Raises:
            InvalidValueError: the value is out of range, or the run cannot hold a bound, or is over.
        """
        self._run_control.change_bound(max_slowdown)

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the run."""
        return self._future.exception() if self._future.done() else None

    @property
    def remaining(self) -> float | None:
        """Estimate of the seconds to the end, if what is left goes on as since the start-up; None: too early to say."""
        if self._ended or self._work_began is None:
            return None
        elapsed, done = time.monotonic() - self._work_began[0], self.progress - self._work_began[1]
        if done < LEAST_PROGRESS or elapsed < LEAST_SECONDS:
            return None
        return elapsed * (1 - self.progress) / done

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the end and returns what the function returned, or raises what it raised.

        Interrupting the wait cancels the run.

        Raises:
            TimeoutError: the run has not ended within ``timeout`` seconds; it continues.
            RunCancelledError: the run was cancelled.
        """
        try:
            return self._future.result(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise interrupted(self.name) from None

    def cancel(self) -> None:
        """Ends the run; returns when all of its processes have ended. Checkpoints are kept."""
        self.request_cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def request_cancel(self) -> None:
        """Ends the run as :meth:`cancel` does, without waiting."""
        self._cancellation.request()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Calls a function, in the thread of the run, after every change; at least once, at the end."""
        self._watchers.append(on_change)
        if self._future.done():
            on_change()

    def _run(self, function: Callable[..., Result], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            with self._cancellation.applied():
                result = function(*arguments, **options)
        # Whatever it is, result() raises it.
        except BaseException as error:
            self._run_control.close()
            self._ended = time.monotonic()
            self._future.set_exception(error)
        else:
            # The last report of many functions comes before their end.
            self._ended, self.progress = time.monotonic(), 1.0
            self._future.set_result(result)
        self._notify()

    def _on_progress(self, what: str, share: float) -> None:
        if self._work_began is None and share > 0:
            self._work_began = time.monotonic(), share
        self.doing, self.progress = what, share
        self._notify()

    def _on_metrics(self, update: Metrics) -> None:
        # After a fault, updates since the checkpoint are repeated.
        while self._metrics and self._metrics[-1].update >= update.update:
            self._metrics.pop()
        self._metrics.append(update)

    def _on_sample(self, sample: LiveSample) -> None:
        self._samples.append(sample)
        self._notify()

    def _notify(self) -> None:
        for on_change in list(self._watchers):
            try:
                on_change()
            except Exception:  # a training does not end because it cannot be shown
                self._watchers.remove(on_change)
                _LOG.exception("%s is no longer shown", self.name)

    def _wrap(self, theirs: Callable[..., None] | None, ours: Callable[..., None]) -> Callable[..., None]:
        """Returns a callback that ends a cancelled run, records its arguments and calls the user's own callback."""

        def callback(*values: Any) -> None:
            self._cancellation.check()
            ours(*values)
            if theirs is not None:
                theirs(*values)

        return callback

    def __repr__(self) -> str:
        took = format_seconds((self._ended or time.monotonic()) - self._started)
        share = f"{100 * self.progress:.0f} %"
        if self.error is not None:
            return f"{self.name}: {self.state} after {took}, at {share}: {self.error}"
        if self._ended:
            return f"{self.name}: done in {took}"
        left = "" if self.remaining is None else f", about {format_seconds(round(self.remaining))} to go"
        return f"{self.name}: {self.doing} ({share}, {took}{left})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Returns a live view in a notebook, a line of text elsewhere."""
        plain = {"text/plain": repr(self)}
        if "ipykernel" not in sys.modules:
            return plain
        try:
            view = importlib.import_module(VIEW)
        except ImportError:
            return plain
        return {**view.RunPanel(self)._repr_mimebundle_(), **plain}


def _name(function: Callable[..., object]) -> str:
    """Returns the name of a function; of a partial, that of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


_LIVE: "weakref.WeakSet[RunHandle[Any]]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends all runs before the interpreter exits: their processes would end too, but private folders would stay."""
    live = [run for run in _LIVE if run.state == "running"]
    for run in live:
        run.request_cancel()
    deadline = time.monotonic() + EXIT_SECONDS
    for run in live:
        run._thread.join(max(0.0, deadline - time.monotonic()))
