"""The process of a background job: trains or rests, as it is told.

Commands: ``setup`` (once); ``train``, which goes on until the next command or for as many steps as it says; ``rest``;
``serve``, which goes on to the job's own end or until the next command, with checkpoints; ``exit``. Answers: ``ready``
with the priority that was granted, and the seconds of a step where one was taken; ``trained`` after ``train``, with the
log of its steps, when the last step is done, or the next command has come and the step under way is done; ``resting``
after ``rest``; ``progress`` now and then while it serves, or trains and shall tell, and ``left`` when serving is over;
``failed`` before it ends by an exception.
"""

import contextlib
import math
import sys
from pathlib import Path

from deeppool.base.sharing import Sharing
from deeppool.device.control_group import join_background
from deeppool.device.cpu import lower_priority, pin_to_core
from deeppool.processes.managed_process import CommandChannel, Message

WORST_OOM_SCORE = "1000"
"""The kernel ends a background before it ends a rank when memory runs out."""


def main() -> None:
    """Obeys the launcher until it is told to exit."""
    commands = CommandChannel()
    setup = commands.next()
    if setup["core"] is not None:
        pin_to_core(setup["core"])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(WORST_OOM_SCORE)
    # A job that starts at the lowest priority beside a busy core may never be ready, so where it is waited for, it
    # starts as an equal. Where it is not, importing torch and capturing the model shall not cost the foreground.
    priority = yield_core(setup) if setup.get("serves") else None
    from deeppool.collocation.background_worker import BackgroundWorker
    from deeppool.execution.failure_report import report_failure

    step = None
    try:
        guest = BackgroundWorker(setup, commands)
        if priority is None:
            # Warm before it is measured.
            guest.step()
            step = guest.time_step()
            priority = yield_core(setup)
        guest.pace(priority)
        commands.answer("ready", priority=", ".join(filter(None, (priority, guest.granted))), step=step)
        while (message := commands.next())["command"] != "exit":
            if message["command"] == "train":
                log = guest.train(
                    message.get("steps", math.inf), message.get("clock", 0.0), tells=message.get("tells", False)
                )
                commands.answer("trained", log=log)
            elif message["command"] == "serve":
                commands.answer("left", **guest.serve(message))
            else:
                commands.answer("resting")
    except Exception as error:
        told = report_failure(commands, error, f"step {guest.updates + 1}" if "guest" in locals() else "its start")
        sys.exit(told["text"])


def yield_core(setup: Message) -> str:
    """Takes the place of a background on its core, and says which; a share is of a GPU where there is one."""
    sharing = Sharing(**setup["sharing"])
    if sharing.share is not None and "rank" in setup and setup.get("device", "cpu") == "cpu":
        return join_background(Path(setup["folder"]).name, setup["rank"], sharing.share)
    return lower_priority(sharing.priority)


if __name__ == "__main__":
    main()
