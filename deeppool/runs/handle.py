"""A long call that goes on while its caller does something else: a notebook's handle on a run."""

import atexit
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

from deeppool.base.cancellation import Cancellation
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
"""What shows a run in a notebook, by name: widgets start runs, so they stand above them."""
SAMPLES = 20_000
"""That a run holds: minutes of a small model, hours of a large one."""
EXIT_SECONDS = 5.0
"""That a process which exits gives its runs to end."""


def start(
    function: Callable[Parameters, Result], /, *arguments: Parameters.args, **options: Parameters.kwargs
) -> "RunHandle[Result]":
    """Begins a call and returns at once, with a handle on it.

        training = dp.start(dp.train, plan, job, steps=1000, checkpoints="checkpoints")
        training                   # in a notebook: progress and loss, live, and a button that cancels
        training.metrics[-1]       # so far
        training.cancel()          # ends every process
        record = training.result()

    A run ends with this process, however that ends: what shall finish is waited for with ``result()``. From another
    notebook or a terminal :func:`deeppool.running` finds it, and can end it.

    Args:
        function: ``dp.train``, ``dp.launch``, ``dp.capture``, ``dp.profile``, ``dp.estimate``,
            ``dp.measure_network`` or ``dp.measure_interference``.
        arguments: of the function.
        options: of the function; its callbacks are called in the thread of the run.

    Raises:
        InvalidValueError: the function reports no progress, so it could be neither shown nor cancelled.
        TypeError: the arguments are not the function's.
    """
    signature = inspect.signature(function)
    if "on_progress" not in signature.parameters:
        raise InvalidValueError(
            f"{function.__name__} reports no progress, so it cannot be followed or cancelled "
            "(start takes dp.train, dp.launch, dp.capture, dp.profile, dp.estimate, dp.measure_network and "
            "dp.measure_interference)"
        )
    signature.bind(*arguments, **options)
    return RunHandle(function, arguments, options, signature.parameters.keys())


class RunHandle(Generic[Result]):
    """A call under way, made by :func:`deeppool.start`. It prints itself in a line."""

    def __init__(
        self, function: Callable[..., Result], arguments: tuple[Any, ...], options: dict[str, Any], takes: Set[str]
    ) -> None:
        """Starts the thread; the function takes arguments of these names."""
        self.name = function.__name__
        self.doing = "starting"
        """In words."""
        self.progress = 0.0
        """The share that is done."""
        self._metrics: list[Metrics] = []
        self._samples: deque[LiveSample] = deque(maxlen=SAMPLES)
        self._run_control = options.get("run_control") or RunControl()
        self._cancellation = Cancellation()
        self._future: Future[Result] = Future()
        self._started, self._ended = time.monotonic(), 0.0
        self._watchers: list[Callable[[], None]] = []
        options = {**options, "on_progress": self._heed(options.get("on_progress"), self._note_progress)}
        if "on_metrics" in takes:
            options["on_metrics"] = self._heed(options.get("on_metrics"), self._note_metrics)
        if "on_sample" in takes:
            options["on_sample"] = self._heed(options.get("on_sample"), self._note_sample)
        if "run_control" in takes:
            options["run_control"] = self._run_control
        else:
            self._run_control.refuse(f"{self.name} holds none while it runs (dp.launch and dp.train do)")
        # A daemon: a kernel that is shut down does not wait for it.
        self._thread = threading.Thread(
            target=self._run, args=(function, arguments, options), name=f"deeppool {self.name}", daemon=True
        )
        _LIVE.add(self)
        self._thread.start()

    @property
    def state(self) -> State:
        """How it stands."""
        if not self._future.done():
            return "running"
        error = self._future.exception()
        return "done" if error is None else "cancelled" if isinstance(error, RunCancelledError) else "failed"

    @property
    def metrics(self) -> tuple[Metrics, ...]:
        """Of every update so far, where the function trains."""
        return tuple(self._metrics)

    @property
    def samples(self) -> tuple[LiveSample, ...]:
        """Of every iteration so far, the latest :data:`SAMPLES` of them, where the function is ``dp.launch``."""
        # A copy in one step, which the interpreter's lock makes whole.
        return tuple(self._samples.copy())

    @property
    def bound(self) -> float | None:
        """On the foreground's mean slowdown, as it was asked for last: 0.03 is 3 %."""
        return self._run_control.bound

    @property
    def bound_refusal(self) -> str | None:
        """Why :meth:`change_bound` would not; None: it would."""
        return self._run_control.refusal

    def change_bound(self, max_slowdown: float) -> None:
        """Has a run of ``dp.launch`` or ``dp.train`` hold another bound on the foreground's slowdown: 0.03 is 3 %.

        The ranks follow before one of their next iterations beside the background. The record of ``dp.launch`` keeps
        what was measured under each bound apart.

        Raises:
            InvalidValueError: it is no bound, or the run cannot hold one, or is over.
        """
        self._run_control.change_bound(max_slowdown)

    @property
    def error(self) -> BaseException | None:
        """Why it failed or was cancelled."""
        return self._future.exception() if self._future.done() else None

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the end; what the function returns or raises. Interrupting the wait cancels the run.

        Raises:
            TimeoutError: it has not ended within ``timeout`` seconds, and goes on.
            RunCancelledError: it was cancelled.
        """
        try:
            return self._future.result(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends it; returns when all of its processes have ended. Checkpoints that were written stay."""
        self.request_cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def request_cancel(self) -> None:
        """As :meth:`cancel`, without waiting."""
        self._cancellation.ask()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Has a function called, in the thread of the run, when there is news; at least once, at the end."""
        self._watchers.append(on_change)
        if self._future.done():
            on_change()

    def _run(self, function: Callable[..., Result], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            with self._cancellation.governing():
                result = function(*arguments, **options)
        # Whatever it is, it is for who asks for the result.
        except BaseException as error:
            self._run_control.close()
            self._ended = time.monotonic()
            self._future.set_exception(error)
        else:
            self._ended = time.monotonic()
            self._future.set_result(result)
        self._tell()

    def _note_progress(self, what: str, share: float) -> None:
        self.doing, self.progress = what, share
        self._tell()

    def _note_metrics(self, update: Metrics) -> None:
        # After a fault, updates behind the checkpoint are made again.
        while self._metrics and self._metrics[-1].update >= update.update:
            self._metrics.pop()
        self._metrics.append(update)

    def _note_sample(self, sample: LiveSample) -> None:
        self._samples.append(sample)
        self._tell()

    def _tell(self) -> None:
        for on_change in list(self._watchers):
            try:
                on_change()
            except Exception:  # a training does not end because nobody can watch it
                self._watchers.remove(on_change)
                _LOG.exception("%s is no longer shown", self.name)

    def _heed(self, theirs: Callable[..., None] | None, ours: Callable[..., None]) -> Callable[..., None]:
        """A callback that notes what it is told, tells the user's own, and ends a run that was cancelled."""

        def callback(*told: Any) -> None:
            self._cancellation.check()
            ours(*told)
            if theirs is not None:
                theirs(*told)

        return callback

    def __repr__(self) -> str:
        took = format_seconds((self._ended or time.monotonic()) - self._started)
        share = f"{100 * self.progress:.0f} %"
        if self.error is not None:
            return f"{self.name}: {self.state} after {took}, at {share}: {self.error}"
        return f"{self.name}: done in {took}" if self._ended else f"{self.name}: {self.doing} ({share}, {took})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Live in a notebook, a line elsewhere."""
        plain = {"text/plain": repr(self)}
        if "ipykernel" not in sys.modules:
            return plain
        try:
            view = importlib.import_module(VIEW)
        except ImportError:
            return plain
        return {**view.RunPanel(self)._repr_mimebundle_(), **plain}


_LIVE: "weakref.WeakSet[RunHandle[Any]]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Before the interpreter goes: processes would notice its end, private folders would stay."""
    live = [run for run in _LIVE if run.state == "running"]
    for run in live:
        run.request_cancel()
    deadline = time.monotonic() + EXIT_SECONDS
    for run in live:
        run._thread.join(max(0.0, deadline - time.monotonic()))
