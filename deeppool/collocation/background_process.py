"""The process of a background job: trains or rests, as the launcher commands.

Commands: ``setup`` (once); ``train``, until the next command or for the given number of steps; ``rest``, which ends
training or serving; ``serve``, with checkpoints, to the job's own end or until the next command; ``exit``. Answers:
``ready`` with the granted priority, and the seconds of a step where one was taken; ``trained`` after ``train``, with
the log of its steps, once the last step is done; ``progress`` from time to time while it serves, or trains and reports
progress; ``left`` when serving is over; ``failed`` before it ends by an exception. The first three have the fields of
``progress``, too.
"""

import contextlib
import math
import sys
from pathlib import Path

from deeppool.base.sharing import Sharing
from deeppool.device.control_group import join_background
from deeppool.device.cpu import lower_priority, pin_to_core
from deeppool.device.kinds import find_kind
from deeppool.processes.managed_process import CommandChannel, Message

WORST_OOM_SCORE = "1000"
"""OOM score by which the kernel ends a background before a rank when memory runs out."""


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    commands = CommandChannel()
    setup = commands.next()
    pin_to_core(setup["core"])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(WORST_OOM_SCORE)
    # At the lowest priority beside a busy core a job may never become ready, so where the launcher waits for it, it
    # starts at normal priority. Elsewhere importing torch and capturing the model must not cost the foreground.
    priority = yield_core(setup) if setup.get("serves") else None
    from deeppool.collocation.background_worker import BackgroundWorker
    from deeppool.execution.failure_report import report_failure

    step = None
    try:
        worker = BackgroundWorker(setup, commands)
        if priority is None:
            # Warm up before timing a step.
            worker.training.step()
            step = worker.time_step()
            priority = yield_core(setup)
        worker.enable_pacing(priority)
        granted = ", ".join(filter(None, (priority, worker.training.shared.granted)))
        commands.answer("ready", priority=granted, step=step, **worker.progress())
        while (message := commands.next())["command"] != "exit":
            if message["command"] == "train":
                log = worker.train(
                    message.get("steps", math.inf),
                    message.get("clock", 0.0),
                    reports_progress=message.get("reports_progress", False),
                )
                commands.answer("trained", log=log, pieces=worker.computed(), **worker.progress())
            elif message["command"] == "serve":
                commands.answer("left", **worker.serve(message))
    except Exception as error:
        report = report_failure(
            commands, error, f"step {worker.training.updates + 1}" if "worker" in locals() else "its start"
        )
        sys.exit(report["text"])


def yield_core(setup: Message) -> str:
    """Lowers this process to a background's priority or share of its core; returns what was granted.

    A share is of the GPU where there is one, and does not change the process.
    """
    sharing = Sharing(**setup["sharing"])
    if sharing.share is not None and "rank" in setup and find_kind(setup.get("device", "cpu")).on_cores:
        return join_background(Path(setup["folder"]).name, setup["rank"], sharing.share)
    return lower_priority(sharing.priority)


if __name__ == "__main__":
    main()
