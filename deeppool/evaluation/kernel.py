"""A notebook's kernel, forked from a process that has loaded torch: each of a night's kernels would load it anew.

jupyter_client finds :class:`ForkedKernel` by its name among those of installed packages (`kernel provisioners`); the
process that runs a notebook asks for it there. The module is also what a nursery runs for it.
"""

import os
import sys
from pathlib import Path
from typing import Any

import ipykernel.kernelapp
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

# What most notebooks load first. Not ipywidgets and plotly, which look for their kernel while they are imported.
import deeppool.execution.worker  # noqa: F401
from deeppool.processes.fork_server_client import fork_own_server, fork_server

FORKED = ("JUPYTER_DEFAULT_PROVISIONER_NAME", "deeppool-forked")
"""In the environment of a process whose kernels are such ones, unless somebody wants others."""
COMMAND = [sys.executable, "-m", "ipykernel_launcher"]
"""How a kernel of this Python is started elsewhere, as ipykernel installs it."""
FOR_DEBUGGERS = "-Xfrozen_modules=off"
"""What ipykernel may install beside it; a night debugs nothing."""


class ForkedKernel(LocalProvisioner):
    """Kernels of this Python are forked, others are started as ever."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """As its base class does."""
        ready = fork_server()
        plain = [word for word in cmd if word != FOR_DEBUGGERS]
        if ready is None or plain[: len(COMMAND)] != COMMAND:
            return await super().launch_kernel(cmd, **kwargs)
        kernel = ready.fork(
            __name__,
            "kernel",
            sys.stderr.fileno(),
            folder=kwargs.get("cwd"),
            # By its parent it knows that nobody reads how to connect to it.
            arguments=[*plain[len(COMMAND) :], f"--IPKernelApp.parent_handle={os.getpid()}"],
            environment=kwargs.get("env"),
        )
        # It is talked to by other ways.
        kernel.stdin.close()
        kernel.stdout.close()
        self.process: Any = kernel
        # It leads a group of its own.
        self.pid = self.pgid = kernel.pid
        self.cwd = kwargs.get("cwd")
        return self.connection_info


def main() -> None:
    """Serves a client, as ``python -m ipykernel_launcher`` does."""
    # The processes of its runs have its modules, too.
    fork_own_server()
    # Standard output is for answers to a launcher; a kernel has others to talk to.
    os.dup2(2, 1)
    if Path(sys.path[0]) == Path.cwd():
        # It has a place of its own for the notebook's folder.
        del sys.path[0]
    ipykernel.kernelapp.launch_new_instance()
