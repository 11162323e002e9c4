"""The site of the documentation: every page is reached, it has every schema, and builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deeppool.evaluation.notebooks import choose, find_notebooks
from deeppool.records.files import KINDS
from docs import generated_pages
from tests.browser.lab import ARGUMENTS
from tests.browser.server import chromium
from tests.docs.test_guides import GENERATED

CHECKOUT = Path(__file__).parents[2]
NOTEBOOK = "fig5"
"""Executed soonest."""


def pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages(part)]


def test_the_navigation_reaches_every_page_once() -> None:
    nav = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages(nav)) == sorted(
        {path.name for path in (CHECKOUT / "docs").glob("*.md")} | GENERATED | {"notebooks/index.md"}
    )


def test_links_within_the_documentation_lead_to_headings() -> None:
    for page in (CHECKOUT / "docs").glob("*.md"):
        for target, anchor in re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", page.read_text(encoding="utf-8")):
            text = (CHECKOUT / "docs" / target).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w-]+", "-", heading.lower()).strip("-") for heading in headings}, (
                page,
                anchor,
            )


def test_the_schema_of_every_kind_of_file_and_of_the_objects_in_it_is_there_once() -> None:
    page = generated_pages.records()
    assert re.findall(r"^## ([a-z-]+)$", page, flags=re.MULTILINE) == list(KINDS)
    classes = re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)
    assert len(classes) == len(set(classes))
    # An object in an object in a run.
    assert "deeppool.records.run_record.TimeSummary" in classes


def test_the_reference_has_every_public_name_that_is_no_record() -> None:
    page = generated_pages.reference()
    for name in ("planning.planner.plan", "runs.train.train", "execution.eager_sgd.EagerSGD"):
        assert f"::: deeppool.{name}\n" in page
    assert "::: deeppool.cluster.cluster.Cluster\n" not in page


# Lines of long signatures are not broken: that takes a process of ruff for each of them, without which it is left out.
BUILD = """
import sys
sys.modules["ruff"] = None
from mkdocs.commands.build import build
from mkdocs.config import load_config
build(load_config("mkdocs.yml", site_dir=sys.argv[1], strict=True, extra={"notebooks": [sys.argv[2]]}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with one executed notebook."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-c", BUILD, str(folder), NOTEBOOK]
    done = subprocess.run(build, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.processes
class TestBuilt:
    """The site as it is built; a warning, such as of a link that leads nowhere, fails the build."""

    def test_it_loads_nothing_from_a_network(self, site: Path) -> None:
        built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
        assert {"index.html", "records.html", "quick-start-8-gpus.html", f"notebooks/{NOTEBOOK}.html"} <= built
        for name in built:
            text = (site / name).read_text(encoding="utf-8")
            loaded = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]+)', text)
            assert loaded == [], name

    def test_a_notebook_is_a_page_with_its_figures_and_what_it_prints(self, site: Path) -> None:
        page = (site / "notebooks" / f"{NOTEBOOK}.html").read_text(encoding="utf-8")
        assert page.count("Plotly.newPlot(") == 1
        assert (site / "notebooks" / "plotly.min.js").stat().st_size > 1e6
        assert page.index('src="plotly.min.js"') < page.index("Plotly.newPlot(")
        # Of a layer of the captured model, in the text of the record.
        assert re.search(r"features\.28\s+not printed\s+[\d.]+x\s+estimated", page)

    def test_the_list_leads_to_the_page_and_to_the_sources_of_all_others(self, site: Path) -> None:
        index = (site / "notebooks" / "index.html").read_text(encoding="utf-8")
        sources = {path.name for path in find_notebooks().values()}
        assert sources <= {path.name for path in (site / "notebooks").glob("*.ipynb")}
        links = set(re.findall(r'href="([^"#]+\.ipynb)"', index))
        assert links == sources - {find_notebooks()[NOTEBOOK].name}
        assert f'href="{NOTEBOOK}.html"' in index

    @pytest.mark.browser
    @pytest.mark.skipif(chromium() is None, reason="there is no chromium")
    def test_the_figure_of_a_notebook_is_drawn_without_a_network(self, site: Path, tmp_path: Path) -> None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
            page = browser.new_page()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto((site / "notebooks" / f"{NOTEBOOK}.html").as_uri())
            page.locator(".js-plotly-plot svg.main-svg").first.wait_for()
            assert page.locator(".js-plotly-plot .bars path").count() > 0
            assert [url for url in asked if not url.startswith(("file://", "data:", "blob:"))] == []
            browser.close()


def test_the_notebooks_to_execute_exist() -> None:
    extra = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8"))["extra"]
    assert {each.name for each in choose(extra["notebooks"])} == set(extra["notebooks"])
