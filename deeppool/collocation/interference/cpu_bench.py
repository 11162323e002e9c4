"""Pairs of kernels on a CPU: two processes on one core, at each priority of the background, or on two cores."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

from deeppool.collocation.interference.synthetic_kernels import KernelSpec
from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError
from deeppool.processes.managed_process import ManagedProcess, Message, receive

WORKER = "deeppool.collocation.interference.kernel_worker"
START_SECONDS, RUN_SECONDS = 120.0, 120.0


class CpuBench:
    """A foreground process, and a background process for each arrangement. A context manager that ends them."""

    def __init__(self, kinds: Sequence[KernelSpec], arrangements: Sequence[str] | None = None) -> None:
        """Starts the processes.

        Args:
            kinds: specifications of the kernels.
            arrangements: any of ``normal``, ``nice``, ``lowest`` and, where there are two cores, ``other core``; all of
                them unless given.

        Raises:
            InvalidValueError: another arrangement.
            RunError: a process died.
        """
        cores = usable_cores()
        places = {name: (cores[0], name) for name in ("normal", "nice", "lowest")}
        if len(cores) > 1:
            places["other core"] = (cores[1], "normal")
        if arrangements is not None:
            places = {name: places[name] for name in select_arrangements(arrangements, list(places))}
        with contextlib.ExitStack() as ending:
            setup = {"kinds": [astuple(kind) for kind in kinds], "sizes": None}
            self._foreground, setup["sizes"] = start(ending, WORKER, "foreground", cores[0], "normal", **setup)
            self._backgrounds = {
                name: start(ending, WORKER, f"background ({name})", core, priority, **setup)[0]
                for name, (core, priority) in places.items()
            }
            self._ending = ending.pop_all()

    @property
    def arrangements(self) -> list[str]:
        """Names of the arrangements."""
        return list(self._backgrounds)

    def alone(self, kernel: int, seconds: float) -> float:
        """Returns the kernels per second of the foreground, or of a background: they are equal."""
        (done,) = run([self._foreground], kernel, seconds)
        return float(done["count"] / done["seconds"])

    def together(self, arrangement: str, foreground: int, background: int, seconds: float) -> tuple[float, float]:
        """Returns the kernels per second of both."""
        child = self._backgrounds[arrangement]
        with running([child], background) as (beside,):
            (done,) = run([self._foreground], foreground, seconds, beside=child)
        # Before and after it is alone: what it got in between is what the foreground saw of its clock.
        got = done["cpu_beside"] / done["seconds"]
        return float(done["count"] / done["seconds"]), float(got * beside["count"] / beside["cpu"])

    def close(self) -> None:
        """Ends all processes."""
        self._ending.close()

    def __enter__(self) -> "CpuBench":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    children: Sequence[ManagedProcess], kernel: int, seconds: float, *, beside: ManagedProcess | None = None
) -> list[Message]:
    """Runs some workers at once for some seconds; returns the answer of each and of the process beside it."""
    for child in children:
        child.send("run", kernel=kernel, seconds=seconds, beside=None if beside is None else beside.process.pid)
    return [receive(child, seconds + RUN_SECONDS) for child in children]


@contextlib.contextmanager
def running(children: Sequence[ManagedProcess], kernel: int) -> Iterator[list[Message]]:
    """Keeps workers running during the block; afterwards the list holds the answer of each."""
    done: list[Message] = [{} for _ in children]
    for child in children:
        child.send("run", kernel=kernel, seconds=None, beside=None)
    for child in children:
        receive(child, RUN_SECONDS)
    yield done
    for child in children:
        child.send("rest")
    for child, found in zip(children, done, strict=True):
        found.update(receive(child, RUN_SECONDS))
        receive(child, RUN_SECONDS)


def start(
    ending: contextlib.ExitStack, module: str, name: str, core: int, priority: str, **setup: Any
) -> tuple[ManagedProcess, Any]:
    """Starts a worker; returns it and the sizes of its kernels, where it has some."""
    child = ending.enter_context(ManagedProcess(module, name))
    child.send("setup", core=core, priority=priority, **setup)
    return child, receive(child, START_SECONDS).get("sizes")


def select_arrangements(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns the requested arrangements, in the order of those supported.

    Raises:
        InvalidValueError: one is not supported, or none is requested.
    """
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise InvalidValueError(
            f"arrangements must be some of {', '.join(known)}, got {', '.join(map(str, wanted)) or 'none'}"
        )
    return [name for name in known if name in wanted]
