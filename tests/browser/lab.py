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
"""anywidget gives a widget up that takes two seconds to start, as any does on a busy machine."""


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
        self.shared: Notebook | None = None
        """Its page and its kernel stay when a test ends."""
        self._folders = itertools.count()

    def open(self, cells: Sequence[str], *, seconds: float = 2 * PATIENCE) -> Notebook:
        """Runs a notebook of these code cells in a new folder.

        Args:
            cells: source of each.
            seconds: in which all of them have run.

        Raises:
            AssertionError: a cell raised, or took longer.
        """
        return self.open_file(self._write(cells), seconds=seconds)

    def open_file(self, path: Path, *, seconds: float = 2 * PATIENCE) -> Notebook:
        """Runs a notebook that is in the server's folder."""
        notebook = self._show(path)
        self.notebooks.append(notebook)
        notebook.run_all(seconds)
        return notebook

    def open_shared(self, cells: Sequence[str], *, seconds: float = 2 * PATIENCE) -> Notebook:
        """Runs cells as ``open`` does, in the page and the kernel of the test before: these have loaded what they need.

        Of that test's widgets, variables and files nothing is left there.
        """
        if self.shared is None:
            self.shared = self._show(self._write([]))
        self.shared.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        self.shared.page.bring_to_front()
        self.shared.replace_cells(cells)
        self.shared.run_all(seconds)
        return self.shared

    def end(self) -> None:
        """Closes every notebook but the shared one, which is emptied; its kernel ends.

        Raises:
            AssertionError: something went wrong in a page, asked for something beyond this machine, or left a process.
        """
        ended, self.notebooks, shared = self.notebooks, [], self.shared
        for notebook in ended:
            notebook.hide()
        self.server.end_kernels("", but=shared.path if shared else None)
        self.server.forget_settings()
        if shared is not None:
            ended.append(shared)
            try:
                shared.empty()
                self.server.await_kernel_alone(shared.path)
            except BaseException:
                # It is of no use to the next test.
                self.shared = None
                shared.hide()
                self.server.end_kernels("")
                raise
        for notebook in ended:
            complaints, notebook.complaints = notebook.complaints, []
            assert not complaints, f"the page complained: {complaints}"
            assert not notebook.strangers, f"the page asked for {notebook.strangers}, which are not on this machine"

    def _write(self, cells: Sequence[str]) -> Path:
        """A notebook in a new folder."""
        folder = self.server.root / f"{next(self._folders):03}"
        folder.mkdir()
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        nbformat.write(notebook, folder / "test.ipynb")
        return folder / "test.ipynb"

    def _show(self, path: Path) -> Notebook:
        notebook = Notebook(self.server, self.browser, path.relative_to(self.server.root).as_posix())
        notebook.show()
        return notebook
