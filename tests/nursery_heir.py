"""A child for tests of the nursery that has one itself, a fork of it: what a child of its own says."""

import os

from deeppool.child import Child, Commands, receive
from deeppool.nursery import inherit, nursery
from tests.nursery_child import SECONDS


def main() -> None:
    inherit()
    commands = Commands()
    with Child("tests.nursery_child", "grandchild", nursery=nursery(), folder=os.environ["HOME"]) as child:
        while commands.next()["command"] != "exit":
            child.send("tell")
            commands.answer(**receive(child, SECONDS))
