"""The site of the documentation: every page is reached, it has every schema, and builds without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deeppool.records.files import KINDS
from docs import generated_pages
from tests.docs.test_guides import GENERATED

CHECKOUT = Path(__file__).parents[2]


def pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages(part)]


def test_the_navigation_reaches_every_page_once() -> None:
    nav = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages(nav)) == sorted({path.name for path in (CHECKOUT / "docs").glob("*.md")} | GENERATED)


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


@pytest.mark.slow
def test_it_builds_without_a_warning_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    built = {path.name for path in tmp_path.glob("*.html")}
    assert {"index.html", "records.html", "quick-start-8-gpus.html"} <= built
    for path in tmp_path.glob("*.html"):
        loaded = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]+)', path.read_text())
        assert loaded == [], path.name
