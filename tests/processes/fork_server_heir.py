"""A child for tests of the nursery that has one itself, a fork of it: what a child of its own says."""

import os

from deeppool.processes.fork_server_client import fork_own_server, fork_server
from deeppool.processes.managed_process import CommandChannel, ManagedProcess, receive
from tests.processes.fork_server_child import SECONDS


def main() -> None:
    fork_own_server()
    commands = CommandChannel()
    with ManagedProcess(
        "tests.processes.fork_server_child", "grandchild", fork_server=fork_server(), folder=os.environ["HOME"]
    ) as child:
        while commands.next()["command"] != "exit":
            child.send("tell")
            commands.answer(**receive(child, SECONDS))
