"""Worker for tests of the fork server that forks its own server and relays the answers of a process of that."""

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
            child.send("describe")
            commands.answer(**receive(child, SECONDS))
