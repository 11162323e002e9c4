"""Makes the documentation's pictures: every widget in both themes in a real JupyterLab, and the README's figures.

python docs/screenshots.py -o docs/pictures                            # all of docs/scenes.py
python docs/screenshots.py telemetry run -o docs/pictures              # some of them
make demo && python docs/screenshots.py --records demo/burst-parallel timeline layers -o docs/pictures
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
"""Pixels: the tallest widget is seen whole."""
FIGURE_WIDTH = 1200
"""Pixels of a README's figure."""
LARGEST = 150_000
"""Bytes of a picture."""

FIGURES: dict[str, Callable[[Path], "go.Figure"]] = {
    "timeline": lambda folder: dp.figures.timeline(dp.load(folder / "run.json")),
    "collocation": lambda folder: dp.figures.collocation(dp.load(folder / "run.json")),
    "layers": lambda folder: dp.figures.layers(dp.load(folder / "plan.json")),
}
"""The README's, from the records of the demo."""


def main() -> None:
    """Makes the pictures that were asked for."""
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
    """The command line; a wrong name ends here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join([*SCENES, *FIGURES])}; all unless given")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--records", type=Path, help="folder with run.json and plan.json, for the README's figures")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SCENES) - set(FIGURES):
        parser.error(f"no picture {', '.join(sorted(unknown))}: there are {', '.join([*SCENES, *FIGURES])}")
    if arguments.records is None and (figures := set(arguments.names) & set(FIGURES)):
        parser.error(f"{', '.join(sorted(figures))} need --records (make demo leaves them in demo/burst-parallel)")
    arguments.names = arguments.names or [*SCENES, *FIGURES]
    return arguments


def picture_scene(lab: Lab, scene: Scene, folder: Path, name: str) -> None:
    """Runs a scene once and pictures it in each theme."""
    notebook = lab.open([cell.strip() for cell in scene.cells], seconds=600)
    panel = notebook.panel(scene.panel)
    scene.prepare(notebook, panel)
    for suffix, theme in THEMES.items():
        notebook.set_theme(theme)
        notebook.wait(panel)
        save(panel, folder / f"{name}-{suffix}.png")
    lab.end()


def picture_figure(figure: "go.Figure", path: Path) -> None:
    """Pictures a figure at the width of a laptop."""
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
    """A PNG of 256 colours: figures and text have no more, and it is a third of the size."""
    with Image.open(io.BytesIO(shown.screenshot(animations="disabled"))) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    if size > LARGEST:
        raise SystemExit(f"{path} has {size} bytes, more than {LARGEST} (show less in its scene)")


if __name__ == "__main__":
    main()
