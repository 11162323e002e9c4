"""A child for tests of the nursery that has one itself, a fork of it: what a child of its own says."""

import os

from deeppool.processes.fork_server_client import inherit, nursery
from deeppool.processes.managed_process import Child, Commands, receive
from tests.processes.fork_server_child import SECONDS


def main() -> None:
    inherit()
    commands = Commands()
    with Child(
        "tests.processes.fork_server_child", "grandchild", nursery=nursery(), folder=os.environ["HOME"]
    ) as child:
        while commands.next()["command"] != "exit":
            child.send("tell")
            commands.answer(**receive(child, SECONDS))
