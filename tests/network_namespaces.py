"""Networks of a test's own: two namespaces with a link between them, as two machines."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LINK = "deeppool0"
"""Name of the network interface of each namespace."""
ADDRESSES = ("10.77.0.1", "10.77.0.2")
"""Address of that interface in each."""


def ip(*arguments: str) -> None:
    """Runs the command ``ip``."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def linked_namespaces() -> Iterator[list[str]]:
    """Makes two network namespaces with a link between them; skips the test where that is not permitted."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    names = [f"deeppool-{os.getpid()}-{side}" for side in (0, 1)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", LINK, "netns", names[0], "type", "veth", "peer", "name", LINK, "netns", names[1])
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine permits no network namespaces: {error}")
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", LINK)
            ip("-n", name, "link", "set", LINK, "up")
            # A machine reaches its own address by its loopback.
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
