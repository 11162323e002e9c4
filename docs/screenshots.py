"""Makes the README's pictures from the demo's records: figures drawn by Chromium, as a reader sees them.

make demo && .venv/bin/python docs/screenshots.py demo/burst-parallel docs
"""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import deeppool as dp

WIDTH = 1200
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main() -> None:
    """Draws each figure at the width of a laptop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="folder with run.json and plan.json")
    parser.add_argument("output", type=Path, help="folder for the pictures")
    arguments = parser.parse_args()
    run = dp.load(arguments.records / "run.json")
    figures = {
        "timeline": dp.figures.timeline(run),
        "collocation": dp.figures.collocation(run),
        "layers": dp.figures.layers(dp.load(arguments.records / "plan.json")),
    }
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        for name, figure in figures.items():
            html = Path(folder, f"{name}.html")
            figure.write_html(html, include_plotlyjs=True)
            page.goto(html.as_uri())
            page.locator(".js-plotly-plot").screenshot(path=str(arguments.output / f"{name}.png"))
        browser.close()


if __name__ == "__main__":
    main()
