"""A process that runs one kernel after another on one core.

Commands: ``setup`` (once), with the size of each kernel or None to find it; ``run`` with a kernel's number and seconds,
or until the next command; ``rest``; ``exit``. Answers: ``ready`` with the priority and the sizes; ``done`` with
the kernels that were run and the seconds; ``resting``.
"""

import time

import torch

from deeppool.child import Commands
from deeppool.device.cpu import lower_priority, pin_to_core
from deeppool.profiling.pairs.synthetic import Kind, buffers, calibrate, launcher


def main() -> None:
    """Obeys until it is told to exit."""
    commands = Commands()
    setup = commands.next()
    pin_to_core(setup["core"])
    torch.set_num_threads(1)
    held = buffers("cpu")
    kinds = [Kind(*kind) for kind in setup["kinds"]]
    sizes = setup["sizes"] or [calibrate(kind, held, lambda: None) for kind in kinds]
    made = [launcher(kind, held, size) for kind, size in zip(kinds, sizes, strict=True)]
    # Only now: beside a busy core the lowest priority would never be ready.
    commands.answer("ready", priority=lower_priority(setup["priority"]), sizes=sizes)
    while (message := commands.next())["command"] != "exit":
        if message["command"] == "rest":
            commands.answer("resting")
            continue
        run, seconds = made[message["kernel"]], message["seconds"]
        count, started = 0, time.perf_counter()
        while not commands.pending() and (seconds is None or time.perf_counter() - started < seconds):
            run()
            count += 1
        commands.answer("done", count=count, seconds=time.perf_counter() - started)


if __name__ == "__main__":
    main()
