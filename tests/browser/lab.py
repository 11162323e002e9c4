"""Drives notebooks in a real JupyterLab in a headless Chromium; for tests, and for the pictures of docs/.

with opened(tmp_path) as lab:                                  # in a test, the fixture ``lab`` is this
    notebook = lab.open(["import deeppool as dp", "explorer = dp.widgets.AmplificationExplorer(…)\\nexplorer"])
    panel = notebook.panel(".dp-amplification-explorer")
    before = notebook.figure(panel)
    notebook.press(notebook.slider(panel, "GPUs"), "ArrowRight")
    after = notebook.changed(panel, before)                    # plotly holds and has drawn something else
    assert after.trace("chosen")["x"] != before.trace("chosen")["x"]
    assert notebook.value("explorer.plan.gpus") == 16          # asks the kernel
    lab.end()                                                  # no complaint, no stranger, no process left
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import BrowserContext, sync_playwright

from tests.browser.notebook import PATIENCE, Notebook
from tests.browser.server import Server, chromium

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage "
    # Whatever is not on this machine is asked of a proxy that nobody runs: it fails, and the request is on record.
    "--proxy-server=http://127.0.0.1:9 --proxy-bypass-list=127.0.0.1"
).split()
WIDTH, HEIGHT = 1366, 900
"""Pixels of a laptop's window; a cell's output is about 1,000 wide."""
UNHURRIED = "const within = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = time => within(60 * time);"
"""anywidget gives a widget up that takes two seconds to start, as plotly's five megabytes do on a busy machine."""


@contextmanager
def opened(folder: Path, *, height: int = HEIGHT) -> Iterator["Lab"]:
    """A server and a browser, until the end of the block."""
    with Server(folder / "jupyter") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=chromium(),
            args=ARGUMENTS,
            viewport={"width": WIDTH, "height": height},
        )
        browser.set_default_timeout(1000 * PATIENCE)
        browser.add_init_script(UNHURRIED)
        try:
            yield Lab(server, browser)
        finally:
            browser.close()


class Lab:
    """A JupyterLab and the browser that shows it."""

    def __init__(self, server: Server, browser: BrowserContext) -> None:
        """Opens nothing yet."""
        self.server = server
        self.browser = browser
        self.notebooks: list[Notebook] = []
        self._folders = itertools.count()

    def open(self, cells: Sequence[str], *, seconds: float = 2 * PATIENCE) -> Notebook:
        """Runs a notebook of these code cells in a new folder.

        Args:
            cells: source of each.
            seconds: in which all of them have run.

        Raises:
            AssertionError: a cell raised, or took longer.
        """
        folder = self.server.root / f"{next(self._folders):03}"
        folder.mkdir()
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, folder / "test.ipynb")
        return self.open_file(folder / "test.ipynb", seconds=seconds)

    def open_file(self, path: Path, *, seconds: float = 2 * PATIENCE) -> Notebook:
        """Runs a notebook that is in the server's folder."""
        notebook = Notebook(self.server, self.browser, path.relative_to(self.server.root).as_posix())
        self.notebooks.append(notebook)
        notebook.show()
        notebook.run_all(seconds)
        return notebook

    def end(self) -> None:
        """Closes every notebook; its kernel ends.

        Raises:
            AssertionError: something went wrong in a page, asked for something beyond this machine, or left a process.
        """
        ended, self.notebooks = self.notebooks, []
        for notebook in ended:
            notebook.hide()
        self.server.end_kernels("")
        self.server.forget_settings()
        for notebook in ended:
            assert not notebook.complaints, f"the page complained: {notebook.complaints}"
            assert not notebook.strangers, f"the page asked for {notebook.strangers}, which are not on this machine"
