"""One notebook in JupyterLab, as somebody without a mouse uses it, and as its kernel and plotly see it."""

import ast
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page

from tests.browser.figure import Drawn, is_dark, read_figure
from tests.browser.server import Server

Theme = Literal["JupyterLab Light", "JupyterLab Dark"]

PATIENCE = 240.0
"""Seconds for what takes a moment on an idle machine."""
POLL, LONGEST_POLL = 0.05, 0.4
"""Seconds between two looks, which keep the page from what it does: each is twice the one before."""
TRANSITION_SECONDS = 0.7
"""In which plotly's transitions end; for pictures only, no test waits."""

DOCUMENT = """path => {
    const found = [...jupyterapp.shell.widgets('main')].find(shown => shown.context?.path === path);
    if (!found) throw new Error(`${path} is not open`);
    return found;
}"""

OPEN = "path => window.jupyterapp && [...jupyterapp.shell.widgets('main')].some(shown => shown.context?.path === path)"

EMPTY = "import ipywidgets; ipywidgets.Widget.close_all(); get_ipython().reset()"


class Notebook:
    """One notebook in a page of its own."""

    def __init__(self, server: Server, browser: BrowserContext, path: str) -> None:
        """Shows nothing yet."""
        self.server = server
        self.browser = browser
        self.path = path
        """Below the server's folder."""
        self.complaints: list[str] = []
        """Errors of the console and of the page."""
        self.strangers: list[str] = []
        """Addresses beyond this machine that the page asked for; it got nothing."""

    # -- the page -----------------------------------------------------------------------------------

    def show(self) -> None:
        """Opens the page, and waits until the kernel answers: a notebook says idle before it can run a cell."""
        self.page: Page = self.browser.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._notice(request.url))
        self.page.on("websocket", lambda socket: self._notice(socket.url))
        workspace = re.sub(r"\W", "-", self.path)
        address = f"{self.server.url}/lab/workspaces/{workspace}/tree/{self.path}"
        self.page.goto(f"{address}?reset&token={self.server.token}")
        self.page.wait_for_function(OPEN, arg=self.path)
        self._ask("await document.context.ready; await document.sessionContext.ready")
        self._await_kernel()

    def hide(self) -> None:
        """Closes the page as a user closes a tab; the kernel goes on."""
        self.page.close(run_before_unload=False)

    def save(self) -> None:
        """As Ctrl-S does."""
        self._ask("await document.context.save()")

    def save_widgets(self) -> None:
        """As "Save Notebook Widget State" and Ctrl-S do: the file then holds what a page without a kernel shows."""
        self._ask("await jupyterapp.commands.execute('@jupyter-widgets/jupyterlab-manager:saveWidgetState')")
        self.save()

    def set_theme(self, theme: Theme) -> None:
        """Of the whole page, as the menu does."""
        self._ask("await jupyterapp.commands.execute('apputils:change-theme', {theme: argument})", theme)
        light = str(theme == "JupyterLab Light").lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")

    # -- cells and the kernel -----------------------------------------------------------------------

    def replace_cells(self, sources: Sequence[str]) -> None:
        """Code cells in place of all that there are."""
        self._ask(
            """const shared = document.content.model.sharedModel;
            shared.transact(() => {
                shared.deleteCellRange(0, shared.cells.length);
                shared.insertCells(0, argument.map(source => ({cell_type: 'code', source, metadata: {}, outputs: []})));
            })""",
            list(sources),
        )

    def empty(self) -> None:
        """Without cells, and of its kernel's widgets, variables and files nothing is left."""
        self.replace_cells([])
        self._ask(
            """const {content} = await document.sessionContext.session.kernel.requestExecute(
                {code: argument, silent: true, store_history: false}).done;
            if (content.status !== 'ok') throw new Error(`${content.ename}: ${content.evalue}`)""",
            EMPTY,
        )
        for path in (self.server.root / self.path).parent.iterdir():
            if path.name != Path(self.path).name:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def run_all(self, seconds: float = 2 * PATIENCE) -> None:
        """Runs every cell; returns when all have.

        Raises:
            AssertionError: a cell raised, or they took longer.
        """
        self.start_all()

        def finished() -> bool:
            cells = self._cells()
            for cell in cells:
                for output in cell["outputs"]:
                    assert output["output_type"] != "error", _told(cell["source"], output)
            return all(cell["count"] is not None and cell["state"] == "idle" for cell in cells)

        self.until(finished, seconds)

    def start_all(self) -> None:
        """As "Run All Cells" of the menu does; waits for nothing."""
        self._ask("jupyterapp.shell.activateById(document.id)")
        self._ask("jupyterapp.commands.execute('notebook:run-all-cells')")

    def restart_kernel(self) -> None:
        """Without asking; no cell runs again."""
        self._ask("await document.sessionContext.restartKernel()")
        self._await_kernel()

    def subshells(self) -> list[str]:
        """Those of the kernel."""
        found: list[str] = self._ask(
            "return (await document.sessionContext.session.kernel.requestListSubshell({}).done).content.subshell_id"
        )
        return found

    def delete_subshells(self) -> None:
        """As JupyterLab does while widgets still use them."""
        self._ask(
            """const kernel = document.sessionContext.session.kernel;
            for (const each of argument) await kernel.requestDeleteSubshell({subshell_id: each}).done""",
            self.subshells(),
        )

    def value(self, expression: str) -> Any:
        """What an expression is in the kernel, which must be free: a literal, or its text when it has no literal."""
        reply = self._ask(
            """const reply = await document.sessionContext.session.kernel.requestExecute(
                {code: '', silent: true, store_history: false, user_expressions: {value: argument}}).done;
            return reply.content.user_expressions.value""",
            expression,
        )
        assert reply["status"] == "ok", f"{expression}: {reply.get('ename')}: {reply.get('evalue')}"
        text = reply["data"]["text/plain"]
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    def outputs(self, cell: int) -> list[dict[str, Any]]:
        """Of one code cell, as a notebook's file has them."""
        found: list[dict[str, Any]] = self._cells()[cell]["outputs"]
        return found

    # -- widgets and figures ------------------------------------------------------------------------

    def panel(self, selector: str) -> Locator:
        """The one widget of a class, ``.dp-run-panel``, when it is to be seen."""
        found = self.page.locator(selector).first
        found.wait_for()
        return found

    def press(self, control: Locator, *keys: str) -> None:
        """Focuses a control and presses keys, as somebody without a mouse does."""
        control.focus()
        for key in keys:
            self.page.keyboard.press(key)

    def slider(self, panel: Locator, label: str) -> Locator:
        """The handle of the slider with this label."""
        return self._control(panel, label, ".widget-slider").locator(".noUi-handle").first

    def button(self, panel: Locator, text: str) -> Locator:
        """The button with this text."""
        return panel.get_by_role("button", name=text, exact=True)

    def choose(self, panel: Locator, label: str, option: str) -> None:
        """Takes an option of the dropdown with this label, by keyboard: the first letters of it."""
        control = self._control(panel, label).locator("select")
        self.press(control, *option)
        assert control.evaluate("select => select.selectedOptions[0].textContent.trim()") == option

    def tools(self) -> set[str]:
        """Names of the buttons in the toolbars of all figures of the page."""
        found: list[str] = self.page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
        return set(found)

    def figure(self, panel: Locator, index: int = 0) -> Drawn:
        """The panel's figure, the first unless told otherwise."""
        return read_figure(panel.locator(".js-plotly-plot").nth(index))

    def changed(self, panel: Locator, before: Drawn, index: int = 0, seconds: float = PATIENCE) -> Drawn:
        """The figure, when both what it holds and what is drawn are no longer what they were."""
        found = before

        def other() -> bool:
            nonlocal found
            found = self.figure(panel, index)
            return found.traces != before.traces and found.drawn != before.drawn

        self.until(other, seconds)
        return found

    def settle(self, panel: Locator) -> None:
        """Returns when the figures of a panel have the colours of the page's theme."""
        dark = self.page.locator("body").get_attribute("data-jp-theme-light") == "false"
        plots = panel.locator(".js-plotly-plot")

        def fits() -> bool:
            papers = [read_figure(plots.nth(index)).filled for index in range(plots.count())]
            return all(paper and is_dark(paper) == dark for paper in papers)

        self.until(fits)
        self.page.wait_for_timeout(1000 * TRANSITION_SECONDS)

    def problem(self, panel: Locator) -> str:
        """The error that the panel shows; empty when it shows none."""
        return panel.locator(".dp-problem").first.inner_text().strip()

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
        """Waits for something, while the page goes on.

        Raises:
            AssertionError: it took longer.
        """
        deadline, pause = time.monotonic() + seconds, POLL
        while time.monotonic() < deadline:
            if condition():
                return
            self.page.wait_for_timeout(1000 * pause)
            pause = min(2 * pause, LONGEST_POLL)
        raise AssertionError(f"not within {seconds:.0f} s; the page complained of {self.complaints or 'nothing'}")

    # -- inside -------------------------------------------------------------------------------------

    def _control(self, panel: Locator, label: str, kind: str = ".jupyter-widgets") -> Locator:
        """The ipywidget with this label; a slider over named values has no class of all ipywidgets, as others have."""
        exact = re.compile(rf"^\s*{re.escape(label)}\s*$")
        return panel.locator(kind).filter(has=self.page.locator(".widget-label", has_text=exact)).last

    def _ask(self, body: str, argument: Any = None) -> Any:
        """Runs JavaScript in which ``document`` is this notebook in JupyterLab."""
        return self.page.evaluate(
            f"async ([path, argument]) => {{ const document = ({DOCUMENT})(path); {body} }}", [self.path, argument]
        )

    def _await_kernel(self) -> None:
        self._ask("await document.sessionContext.session.kernel.info")

    def _cells(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask(
            """return document.content.widgets.filter(cell => cell.model.type === 'code').map(cell => ({
                source: cell.model.sharedModel.source, count: cell.model.executionCount,
                state: cell.model.executionState, outputs: cell.model.outputs.toJSON()}))"""
        )
        return found

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def _notice(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.strangers.append(url)


def _told(source: str, output: dict[str, Any]) -> str:
    """A cell's error, with its traceback as plain text."""
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"]))
    return f"a cell raised {output['ename']}: {output['evalue']}\n{source}\n{traceback}"
