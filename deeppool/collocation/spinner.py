"""The process of a spinner: keeps one core active at the lowest priority, for the foreground's baseline.

Always the lowest priority, whatever the background's: a baseline beside a spinner of equal priority would hide what
such a background costs. Commands: ``setup`` (once); ``spin``, until the next command; ``rest``; ``exit``. Answers:
``ready`` and ``resting``.
"""

import time

from deeppool.device.control_group import join_foreground
from deeppool.device.cpu import lower_priority, pin_to_core
from deeppool.processes.managed_process import CommandChannel

SPIN_SECONDS = 0.001


def spin(commands: CommandChannel) -> None:
    """Keeps the core active until the next command."""
    while not commands.pending():
        until = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < until:
            pass


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    commands = CommandChannel()
    setup = commands.next()
    pin_to_core(setup["core"])
    if setup["run"] is not None:
        join_foreground(setup["run"], setup["rank"])
    lower_priority("lowest")
    commands.answer("ready")
    while (command := commands.next()["command"]) != "exit":
        if command == "spin":
            spin(commands)
        else:
            commands.answer("resting")


if __name__ == "__main__":
    main()
