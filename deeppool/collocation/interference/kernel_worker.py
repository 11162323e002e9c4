"""A process that runs one kernel after another on one core.

Commands: ``setup`` (once), with the size of each kernel or None to find it; ``run`` with a kernel's number and seconds,
or until the next command, and the process beside it; ``rest``; ``exit``. Answers: ``ready`` with the sizes; ``running``
after the first kernel of a run without end; ``done`` with the kernels that were run, the seconds, those in which the
core computed, and those of the process beside it; ``resting``.
"""

import time
from collections.abc import Callable, Sequence

import torch

from deeppool.collocation.interference.synthetic_kernels import KernelSpec, buffers, calibrate, launcher
from deeppool.device.cpu import CpuDevice, cpu_seconds_of, lower_priority, pin_to_core
from deeppool.processes.managed_process import CommandChannel


def main() -> None:
    """Executes commands until ``exit``."""
    commands = CommandChannel()
    setup = commands.next()
    pin_to_core(setup["core"])
    torch.set_num_threads(1)
    device = CpuDevice()
    held = buffers(device)
    kinds = [KernelSpec(*kind) for kind in setup["kinds"]]
    sizes = setup["sizes"] or [calibrate(kind, held, device) for kind in kinds]
    made = [launcher(kind, held, size) for kind, size in zip(kinds, sizes, strict=True)]
    # Only now: beside a busy core the lowest priority would never be ready.
    lower_priority(setup["priority"])
    commands.answer("ready", sizes=sizes)
    serve(commands, made)


def serve(
    commands: CommandChannel, kernels: Sequence[Callable[[], object]], *, over: Callable[[], bool] | None = None
) -> None:
    """Executes commands until ``exit``.

    Args:
        commands: channel of the commands.
        kernels: functions of the kernels, by number.
        over: called after each kernel; returns whether the run ends. Default: it ends with the next command.
    """
    over = over or commands.pending
    while (message := commands.next())["command"] != "exit":
        if message["command"] == "rest":
            commands.answer("resting")
            continue
        kernel, seconds, beside = kernels[message["kernel"]], message["seconds"], message["beside"]
        commands.answer("done", **_counted(commands, kernel, over, seconds, beside))


def _counted(
    commands: CommandChannel,
    run: Callable[[], object],
    over: Callable[[], bool],
    seconds: float | None,
    beside: int | None,
) -> dict[str, float]:
    def clocks() -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), 0.0 if beside is None else cpu_seconds_of(beside)

    count, before = 0, clocks()
    while True:
        run()
        count += 1
        if seconds is None and count == 1:
            commands.answer("running")
        if over() or (seconds is not None and time.perf_counter() - before[0] >= seconds):
            break
    elapsed, cpu, cpu_beside = (after - one for one, after in zip(before, clocks(), strict=True))
    return {"count": count, "seconds": elapsed, "cpu": cpu, "cpu_beside": cpu_beside}


if __name__ == "__main__":
    main()
