"""Kernels forked from a process that has loaded torch: for their clients as those that are started anew."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from deeppool.evaluation.kernel import FORKED, ForkedKernel
from tests.processes.children import gone, runs

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]
PATIENCE = 100
LOADED = """
import json, os, sys
print(json.dumps([name in sys.modules for name in ("torch", "plotly", "ipywidgets")]))
print(os.getcwd(), os.environ["GIVEN"], sys.argv[0].rsplit(".")[-1])
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    monkeypatch.setenv(*FORKED)
    KernelProvisionerFactory.clear_instance()
    # Beside tests, kernels leave standard output alone.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    environment = {**os.environ, "GIVEN": "by its client"}
    manager, client = start_new_kernel(PATIENCE, kernel_name="python3", cwd=str(tmp_path), env=environment)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    KernelProvisionerFactory.clear_instance()


def printed(client: BlockingKernelClient, code: str) -> tuple[str, str]:
    """What a piece of code prints, and how it ends."""
    lines: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            lines.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=PATIENCE, output_hook=hear)
    return "".join(lines), reply["content"].get("ename", reply["content"]["status"])


def test_it_is_forked_with_torch_and_without_what_looks_for_its_kernel(started, tmp_path: Path) -> None:
    manager, client = started
    assert isinstance(manager.provisioner, ForkedKernel)
    assert runs(psutil.Process(manager.provisioner.pid), "evaluation.kernel")
    text, end = printed(client, LOADED)
    assert (text.splitlines(), end) == (["[true, false, false]", f"{tmp_path} by its client kernel"], "ok")
    text, _ = printed(client, "import os\nos.system('echo from the shell')")
    assert "from the shell" in text


def test_it_is_interrupted_restarted_and_ended(started) -> None:
    manager, client = started
    process = psutil.Process(manager.provisioner.pid)
    waits = client.execute("import time\nprint('waits', flush=True)\ntime.sleep(1000)")
    while client.get_iopub_msg(timeout=PATIENCE)["msg_type"] != "stream":
        pass
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=PATIENCE))["parent_header"]["msg_id"] != waits:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert printed(client, "print(1 + 1)") == ("2\n", "ok")
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=PATIENCE)
    assert gone(process)
    assert printed(client, "print('waits' in globals())") == ("False\n", "ok")


def test_one_that_is_killed_is_known_to_be_dead(started) -> None:
    manager, _ = started
    psutil.Process(manager.provisioner.pid).kill()
    deadline = time.monotonic() + PATIENCE
    while manager.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_kernel_of_another_kind_is_started_as_ever(started, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _ = started
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deeppool.evaluation.kernel.COMMAND", ["another", "python"])
        manager.restart_kernel(now=True)
    words = psutil.Process(manager.provisioner.pid).cmdline()
    assert words[:3] == [sys.executable, "-m", "ipykernel_launcher"]
