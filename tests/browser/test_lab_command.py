"""``deeppool lab``: the user's own copies in a JupyterLab that only they reach, and that asks nobody for anything."""

import subprocess
import urllib.error
import urllib.request

import psutil

from tests.browser.lab_command import COPY, LabCommand
from tests.browser.notebook import Notebook
from tests.browser.server import environment


def refused(url: str) -> bool:
    """Whether it answers nothing but "who are you?" without a token."""
    try:
        with urllib.request.urlopen(url) as answer:
            return "/login" in answer.url
    except urllib.error.HTTPError as error:
        with error:
            return error.code == 403


def listening(process: psutil.Process) -> set[str]:
    processes = [process, *process.children(recursive=True)]
    found = [connection for each in processes for connection in each.net_connections("inet")]
    return {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}


def test_the_users_copy_runs_behind_a_token_on_this_machine_only(
    lab_command: LabCommand, users_notebook: Notebook
) -> None:
    server = lab_command
    assert f"Your notebooks are in {server.root}: edited copies are kept" in server.log.read_text()
    assert len(server.token) >= 32
    for path in ("/api/contents", "/api/kernels", f"/files/{COPY}", "/lab"):
        assert refused(server.url + path)
    assert not refused(f"{server.url}/api/contents?token={server.token}")
    second = subprocess.run(
        server.command(), env=environment(server.folder), capture_output=True, timeout=300, check=False
    )
    assert second.returncode == 1
    assert f"port {server.port} is not available" in second.stderr.decode()
    notebook = users_notebook
    assert notebook.outputs(0) == []
    assert listening(server.process()) == {"127.0.0.1"}
    assert notebook.subshells() == []
    assert notebook.page.locator(".Toastify__toast").count() == 0
    tools = notebook.tools()
    assert "Zoom" in tools and "Share chart..." not in tools
