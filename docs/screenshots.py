"""Makes the README's pictures: widgets in a real JupyterLab, and the timeline of the demo's run.

python docs/screenshots.py -o docs/pictures                            # all scenes of docs/scenes.py
python docs/screenshots.py model-light profile-dark -o docs/pictures   # some of them
make demo && python docs/screenshots.py --records demo/burst-parallel timeline -o docs/pictures
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from PIL import Image
from playwright.sync_api import Locator

import deeppool as dp
from docs.scenes import SCENES, Scene
from tests.browser.lab import ARGUMENTS, Lab, opened
from tests.browser.notebook import Theme
from tests.browser.server import chromium

if TYPE_CHECKING:
    import plotly.graph_objects as go

THEMES: dict[str, Theme] = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WINDOW_HEIGHT = 1900
"""Pixels; fits the tallest widget."""
FIGURE_WIDTH = 1200
"""Width of a figure in pixels."""
LARGEST = 150_000
"""Maximum size of a picture in bytes."""

FIGURES: dict[str, Callable[[Path], "go.Figure"]] = {
    "timeline": lambda folder: dp.figures.timeline(dp.load(folder / "run.json")),
}
"""Figures made from the records of the demo."""


def main() -> None:
    """Makes the requested pictures."""
    arguments = parse()
    arguments.output.mkdir(parents=True, exist_ok=True)
    scenes = {name: scene for name, scene in SCENES.items() if name in arguments.names}
    if arguments.records is not None:
        for name, draw in FIGURES.items():
            if name in arguments.names:
                picture_figure(draw(arguments.records), arguments.output / f"{name}.png")
    if scenes:
        with tempfile.TemporaryDirectory() as folder, opened(Path(folder), height=WINDOW_HEIGHT) as lab:
            for name, scene in scenes.items():
                picture_scene(lab, scene, arguments.output, name)


def parse() -> argparse.Namespace:
    """Parses the command line and rejects unknown names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join([*SCENES, *FIGURES])}; all unless given")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--records", type=Path, help="folder with run.json of the demo")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SCENES) - set(FIGURES):
        parser.error(f"no picture {', '.join(sorted(unknown))}: there are {', '.join([*SCENES, *FIGURES])}")
    if arguments.records is None and (figures := set(arguments.names) & set(FIGURES)):
        parser.error(f"{', '.join(sorted(figures))} need --records (make demo leaves them in demo/burst-parallel)")
    arguments.names = arguments.names or [*SCENES, *FIGURES]
    return arguments


def picture_scene(lab: Lab, scene: Scene, folder: Path, name: str) -> None:
    """Runs a scene and takes a picture of its widget in its theme."""
    notebook = lab.open([cell.strip() for cell in scene.cells], seconds=600)
    panel = notebook.panel(scene.panel)
    scene.prepare(notebook, panel)
    notebook.set_theme(THEMES[name.rpartition("-")[2]])
    notebook.settle(panel)
    save(panel, folder / f"{name}.png")
    lab.end()


def picture_figure(figure: "go.Figure", path: Path) -> None:
    """Takes a picture of a figure at the width of a laptop screen."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": FIGURE_WIDTH, "height": 900})
        html = Path(folder, "figure.html")
        figure.write_html(html, include_plotlyjs=True)
        page.goto(html.as_uri())
        save(page.locator(".js-plotly-plot"), path)
        browser.close()


def save(shown: Locator, path: Path) -> None:
    """Saves a PNG with 256 colours, enough for figures and text, at a third of the size."""
    with Image.open(io.BytesIO(shown.screenshot(animations="disabled"))) as picture:
        # Other methods mix rare colours, such as a legend entry's, with frequent ones.
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    if size > LARGEST:
        raise SystemExit(f"{path} has {size} bytes, more than {LARGEST} (show less in its scene)")


if __name__ == "__main__":
    main()
