"""Index page of a nightly run: its text, its links, and that it loads nothing from a network."""

import html.parser
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from deeppool.base import serialization
from deeppool.evaluation import Findings
from deeppool.evaluation.entries import Check
from deeppool.evaluation.index import page, write_index
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome, Observation
from deeppool.evaluation.regression_report import RegressionReport, compare_with_earlier

NASTY = "a </script><b> & title"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Output of a nightly run: one notebook done, with a record; one failed."""
    run = tmp_path / "2026-11-21"
    (run / "fig10").mkdir(parents=True)
    (run / "fig10" / "fig10-x.ipynb").touch()
    (run / "fig10" / "fig10-x.html").touch()
    findings = Findings("fig10", "Partitions", device="here")
    findings.number("speed-up <1>", 1.3, "x", "simulated", paper=1.38, why="other times")
    findings.save(run / "fig10")
    return run


def make_run(value: float = 2.0, **fields) -> NightlyRun:
    done = NotebookOutcome(
        name="fig10",
        title=NASTY,
        state="done",
        problem="",
        measures=False,
        parameters={},
        seconds=12.3,
        notebook="fig10/fig10-x.ipynb",
        html="fig10/fig10-x.html",
        observations=(Observation("speed-up <1>", value, "x", "simulated"),),
        checks=(Check("it gains", value > 1.5, "see above"),),
    )
    failed = replace(
        done,
        name="fig11",
        title="Ladder",
        state="failed",
        problem="cell 3: boom",
        notebook="",
        html="",
        observations=(),
        checks=(),
    )
    late = replace(failed, name="table3", state="not run", problem="the budget of 60 s was spent before it began")
    return NightlyRun(
        name="2026-11-21",
        preset="quick",
        device="a processor",
        notebooks=("fig10", "fig11", "table3"),
        started="2026-11-21T02:00:00+00:00",
        finished="2026-11-21T02:30:00+00:00",
        versions={"torch": "2.13.0"},
        outcomes=(done, failed, late),
        **fields,
    )


def report_of(run: NightlyRun) -> RegressionReport:
    earlier = [replace(make_run(), name=f"2026-11-{day}", started=f"2026-11-{day}T02:00:00+00:00") for day in (19, 20)]
    return compare_with_earlier(run, earlier)


class Page(html.parser.HTMLParser):
    """Text, links and loaded addresses of a page, and whether its elements are closed in order."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.addresses, self.open = "", [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def read(run: NightlyRun, folder: Path) -> Page:
    path = write_index(run, report_of(run), folder)
    found = Page(path.read_text(encoding="utf-8"))
    assert found.open == []
    return found


def test_a_link_to_a_name_with_signs_of_addresses_leads_to_the_file(folder: Path) -> None:
    run = make_run()
    odd = replace(run.outcomes[0], html="50% #1/50% #1?.html")
    addresses = read(replace(run, outcomes=(odd, *run.outcomes[1:])), folder).addresses
    assert odd.html in map(unquote, addresses)
    assert not any(sign in address for address in addresses for sign in "#? ")


def test_the_page_shows_changed_numbers_failures_and_checks(folder: Path) -> None:
    text = " ".join(read(make_run(1.4), folder).text.split())
    assert "1 changed, 1 failed, 1 not run, 1 of 1 checks do not hold" in text
    assert "fig10: speed-up <1>" in text
    assert "cell 3: boom" in text
    assert "the budget of 60 s was spent before it began" in text
    assert "last held 2026-11-20" in text
    assert "1.38x" in text and "other times" in text


def test_text_from_notebooks_is_escaped_and_the_page_has_no_script(folder: Path) -> None:
    found = read(make_run(), folder)
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert NASTY in found.text and NASTY not in text
    assert "<script" not in text


def test_numbers_of_done_notebooks_are_shown_and_links_lead_to_the_report_and_the_notebook(folder: Path) -> None:
    found = read(make_run(), folder)
    assert "1 numbers, 0 checks" in found.text and "speed-up <1>" in found.text
    assert {"fig10/fig10-x.html", "fig10/fig10-x.ipynb"} <= set(found.addresses)


def test_every_address_of_the_page_is_of_a_file_beside_it(folder: Path) -> None:
    (folder.parent / "2026-11-20").mkdir()
    (folder.parent / "2026-11-20" / "index.html").touch()
    addresses = read(make_run(), folder).addresses
    assert "../2026-11-20/index.html" in addresses
    # That run was removed, so there is no link to it.
    assert "../2026-11-19/index.html" not in addresses
    for address in addresses:
        assert (folder / address).is_file()


def test_a_run_without_history_or_outcomes_has_a_page(tmp_path: Path) -> None:
    run = replace(make_run(), outcomes=())
    text = page(run, compare_with_earlier(run, []), tmp_path)
    assert "this is the first of its preset and machine" in text


def test_the_record_of_a_run_is_read_back(folder: Path) -> None:
    serialization.write(make_run(), folder / "night.json")
    assert serialization.read(folder / "night.json", NightlyRun).outcome("fig11").problem == "cell 3: boom"
