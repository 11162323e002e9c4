"""A JupyterLab of a test's own: its folders, port and token are private, and nothing of the user's is read."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from tests.ranks import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0
END_SECONDS = 120.0
FORK_SERVER = "deeppool.processes.fork_server"

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # Tests ask the application what a cell is doing; the page's elements of it come and go with scrolling.
    "LabApp": {"expose_app_in_browser": True},
    "ServerApp": {"open_browser": False, "allow_root": True, "port_retries": 0},
}
"""In the configuration of every server here, the product's own as well."""
OFFLINE: Mapping[str, Mapping[str, Any]] = {
    "LabApp": {"extension_manager": "readonly", "news_url": None},
    "ServerApp": {"ip": "127.0.0.1"},
}
"""What ``deeppool lab`` sees to itself."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    # Elements out of sight stay in the page.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
NO_NEWS: Mapping[str, Mapping[str, Any]] = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}
"""What ``deeppool lab`` sees to itself."""
NO_BUILD: Mapping[str, Any] = {"buildAvailable": False, "buildCheck": False}
"""What ``deeppool lab`` sees to itself."""


class Server:
    """JupyterLab from ``with`` to its end; its kernels import this checkout."""

    def __init__(self, folder: Path) -> None:
        """Nothing starts yet.

        Args:
            folder: gets the notebooks, in ``work``, and all that Jupyter writes.
        """
        self.folder = folder
        self.root = folder / "work"
        self.token = secrets.token_hex(16)
        self.port = free_port()
        self.log = folder / "jupyter.log"

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """That starts it."""
        return [
            *(sys.executable, "-m", "jupyterlab", f"--ServerApp.port={self.port}"),
            *(f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.root}"),
        ]

    def configuration(self) -> Mapping[str, Mapping[str, Any]]:
        """Of the user that starts it."""
        return {part: {**OPTIONS.get(part, {}), **OFFLINE.get(part, {})} for part in OPTIONS}

    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Of JupyterLab, as the user's defaults."""
        return {**SETTINGS, **NO_NEWS}

    def page_configuration(self) -> Mapping[str, Any]:
        """Of the user's pages."""
        return NO_BUILD

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self.root.mkdir()
        (self.folder / "config" / "labconfig").mkdir(parents=True)
        _write(self.folder / "config" / "jupyter_lab_config.json", self.configuration())
        _write(self.folder / "config" / "labconfig" / "default_setting_overrides.json", self.settings())
        _write(self.folder / "config" / "labconfig" / "page_config.json", self.page_configuration())
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), env=environment(self.folder), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        left = self.processes()
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in left:
            if process.is_running():
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """All that kernels are, and have started."""
        return self.process().children(recursive=True)

    def process(self) -> psutil.Process:
        """The server's own."""
        return psutil.Process(self._process.pid)

    def ask(self, method: str, path: str) -> Any:
        """A request to the server's own interface; its answer as JSON, None when it is empty."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def end_kernels(self, path: str, *, but: str | None = None) -> None:
        """Ends those of one notebook, or of a folder of notebooks.

        Args:
            path: of the notebook or the folder.
            but: path of a notebook whose kernel goes on.

        Raises:
            AssertionError: a process of theirs is left.
        """
        sessions = self.ask("GET", "/api/sessions")
        ended = [session for session in sessions if session["path"].startswith(path) and session["path"] != but]
        kernels = [kernel for session in ended for kernel in self._kernels(session)]
        before = [process for kernel in kernels for process in (kernel, *kernel.children(recursive=True))]
        for session in ended:
            self.ask("DELETE", f"/api/sessions/{session['id']}")
        _, left = psutil.wait_procs(before, END_SECONDS)
        assert not left, f"processes of {path} are left: {left}"

    def await_kernel_alone(self, path: str) -> None:
        """Returns when a notebook's kernel has no process but the one that it forks others from.

        Raises:
            AssertionError: another one is left.
        """
        sessions = self.ask("GET", "/api/sessions")
        (kernel,) = [kernel for session in sessions if session["path"] == path for kernel in self._kernels(session)]
        started = [each for each in kernel.children(recursive=True) if FORK_SERVER not in each.cmdline()]
        _, left = psutil.wait_procs(started, END_SECONDS)
        assert not left, f"processes of {path} are left: {left}"

    def _kernels(self, session: Mapping[str, Any]) -> list[psutil.Process]:
        """The process that a session's kernel is."""
        file = f"kernel-{session['kernel']['id']}.json"
        return [each for each in self.process().children() if any(file in word for word in each.cmdline())]

    def forget_settings(self) -> None:
        """What the user has changed since the start, as the theme."""
        shutil.rmtree(self.folder / "config" / "lab" / "user-settings", ignore_errors=True)

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            self.ask("GET", "/api/status")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.ready():
            told = self.log.read_text(errors="replace")
            assert self._process.poll() is None, f"JupyterLab ended: {told}"
            assert time.monotonic() < deadline, f"JupyterLab did not start in {START_SECONDS} s: {told}"
            time.sleep(0.1)


def environment(folder: Path) -> Mapping[str, str]:
    """Of a Jupyter whose every folder is below this one, and whose kernels import this checkout."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {
        **os.environ,
        "PYTHONWARNINGS": "",  # JupyterLab's own packages warn
        "HOME": str(folder),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
        "IPYTHONDIR": str(folder / "ipython"),
        "XDG_RUNTIME_DIR": str(runtime),
        "PYTHONPATH": str(CHECKOUT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def chromium() -> str | None:
    """The browser of this machine, if it has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")
