"""Small pictures of the figures of executed notebooks, drawn by Chromium where there is one.

Where there is none, the index page draws the figures itself, from their data.
"""

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deeppool.errors import DocumentError
from deeppool.evaluation.html import FIGURE
from deeppool.evaluation.nightly_record import NightlyRun

Figure = dict[str, Any]
"""Data and layout, as plotly has them in JSON."""

MOST = 6
"""Figures of a notebook, its last ones: it ends in the one that it is about."""
WIDTH, HEIGHT = 960, 540
"""Pixels in which a figure is laid out; shown at half of it."""
SECONDS = 120.0
"""For Chromium to draw all of them."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PLOTLY = "plotly.min.js"

# One figure after another; what cannot be drawn is left out. The body is the answer: the name, a space, the picture.
_PAGE = """<!doctype html><meta charset="utf-8"><script src="plotly.min.js"></script><div id="stage"></div>
<script type="application/json" id="figures">{figures}</script>
<script>
(async () => {{
  const stage = document.getElementById("stage");
  for (const [name, figure] of Object.entries(JSON.parse(document.getElementById("figures").textContent))) {{
    try {{
      const size = {{width: {width}, height: figure.layout.height || {height}}};
      await Plotly.newPlot(stage, figure.data, {{...figure.layout, ...size}}, {{staticPlot: true}});
      const answer = document.createElement("p");
      answer.className = "drawn";
      answer.textContent = name + " " + await Plotly.toImage(stage, {{...size, format: "png"}});
      document.body.append(answer);
    }} catch (error) {{ console.error(name, error); }}
    Plotly.purge(stage);
  }}
}})();
</script>"""
_DRAWN = re.compile(r'<p class="drawn">(\S+) data:image/png;base64,([A-Za-z0-9+/=]+)</p>')


def figures_of(notebook: Path) -> list[Figure]:
    """The last figures of an executed notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [output["data"][FIGURE] for output in outputs if FIGURE in output.get("data", {})][-MOST:]


def night_figures(night: NightlyRun, folder: Path) -> dict[str, Figure]:
    """Figures of all notebooks that ran to their end: ``fig10/thumbnail-1`` is the first of fig10."""
    return {
        f"{outcome.name}/thumbnail-{number}": figure
        for outcome in night.outcomes
        if outcome.state == "done"
        for number, figure in enumerate(figures_of(folder / outcome.notebook), start=1)
    }


def draw_thumbnails(night: NightlyRun, folder: Path) -> NightlyRun:
    """Draws the figures of a night beside its notebooks; without a browser there are none.

    Returns:
        The night with the paths of its pictures.

    Raises:
        DocumentError: a picture cannot be written.
    """
    figures = night_figures(night, folder)
    browser = find_browser()
    drawn = draw(figures, browser) if figures and browser else {}
    pictures: dict[str, list[str]] = {}
    for name in figures:
        if name in drawn:
            path = f"{name}.png"
            try:
                (folder / path).write_bytes(drawn[name])
            except OSError as error:
                raise DocumentError(f"cannot write {folder / path}: {error.strerror} (free some space)") from error
            pictures.setdefault(name.split("/")[0], []).append(path)
    return replace(
        night, outcomes=tuple(replace(x, thumbnails=tuple(pictures.get(x.name, ()))) for x in night.outcomes)
    )


def find_browser() -> str | None:
    """Chromium or Chrome, where there is one."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def draw(figures: Mapping[str, Figure], browser: str) -> dict[str, bytes]:
    """PNG pictures of figures by name, by one run of a browser without a window; those that it could draw.

    A picture is worth no night: a browser that fails, or hangs, draws none.
    """
    try:
        answer = _ask(figures, browser)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[str, bytes] = {}
    for name, picture in _DRAWN.findall(answer):
        try:
            found[name] = base64.b64decode(picture, validate=True)
        except binascii.Error:
            continue
    return found


def _ask(figures: Mapping[str, Figure], browser: str) -> str:
    """The page after it has drawn everything."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        write_plotly(Path(scratch))
        page = Path(scratch, "page.html")
        page.write_text(_PAGE.format(figures=inline_json(figures), width=WIDTH, height=HEIGHT), encoding="utf-8")
        command = [browser, *_arguments(scratch), "--dump-dom", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.stdout


def _arguments(scratch: str) -> Sequence[str]:
    wanted = (
        f"--headless --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        f"--disable-component-update --disable-sync --disable-dev-shm-usage --user-data-dir={scratch}/profile "
        f"--window-size={WIDTH},{HEIGHT} --virtual-time-budget={int(1000 * SECONDS)}"
    ).split()
    # Chromium refuses to run as root in its sandbox; the page is ours and loads nothing.
    return [*wanted, "--no-sandbox"] if os.geteuid() == 0 else wanted


def write_plotly(folder: Path) -> None:
    """Puts plotly's script into a folder, for the pages in it and below."""
    from plotly.offline import get_plotlyjs

    (folder / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")


def inline_json(value: object) -> str:
    """JSON that may stand in a script element: nothing in it ends that."""
    return json.dumps(value).replace("<", "\\u003c")
