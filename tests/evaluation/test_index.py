"""The page of a night: what it says, and that it asks for nothing from a network."""

import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from deeppool.base import serialization
from deeppool.evaluation import Findings
from deeppool.evaluation.html import FIGURE
from deeppool.evaluation.index import page, write_index
from deeppool.evaluation.nightly_record import NightlyRun, Observation, Outcome
from deeppool.evaluation.record import Check
from deeppool.evaluation.regression_report import RegressionReport, compare_with_earlier
from deeppool.evaluation.thumbnails import PLOTLY, figures_of, night_figures, write_plotly

NASTY = "a </script><b> & title"


def notebook_with(*figures: go.Figure) -> str:
    outputs = [{"output_type": "display_data", "data": {FIGURE: json.loads(figure.to_json())}} for figure in figures]
    return json.dumps({"cells": [{"cell_type": "code", "outputs": [each]} for each in outputs]})


def bars(title: str) -> go.Figure:
    return go.Figure(go.Bar(x=[1, 2], y=[3, 4]), layout={"title": {"text": title}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a night leaves: one notebook done, with a record; one failed."""
    night = tmp_path / "2026-11-21"
    (night / "fig10").mkdir(parents=True)
    (night / "fig10" / "fig10-x.ipynb").write_text(notebook_with(bars("one"), bars(NASTY)))
    (night / "fig10" / "fig10-x.html").touch()
    findings = Findings("fig10", "Partitions", device="here")
    findings.number("speed-up <1>", 1.3, "x", "simulated", paper=1.38, why="other times")
    findings.save(night / "fig10")
    write_plotly(night)
    return night


def tonight(value: float = 2.0, **fields) -> NightlyRun:
    done = Outcome(
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


def judged(night: NightlyRun) -> RegressionReport:
    earlier = [replace(tonight(), name=f"2026-11-{day}", started=f"2026-11-{day}T02:00:00+00:00") for day in (19, 20)]
    return compare_with_earlier(night, earlier)


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


def read(night: NightlyRun, folder: Path) -> Page:
    path = write_index(night, judged(night), folder)
    found = Page(path.read_text(encoding="utf-8"))
    assert found.open == []
    return found


def test_the_page_says_what_moved_broke_did_not_run_and_does_not_hold(folder: Path) -> None:
    text = " ".join(read(tonight(1.4), folder).text.split())
    assert "1 moved, 1 broke, 1 did not run, 1 of 1 checks do not hold" in text
    assert "fig10: speed-up <1>" in text
    assert "cell 3: boom" in text
    assert "the budget of 60 s was spent before it began" in text
    assert "last held 2026-11-20" in text
    assert "1.38x" in text and "other times" in text


def test_a_figure_without_a_picture_is_drawn_by_the_readers_browser_from_a_script_beside_the_page(folder: Path) -> None:
    found = read(tonight(), folder)
    assert PLOTLY in found.addresses
    text = (folder / "index.html").read_text(encoding="utf-8")
    inline = re.findall(r'<script type="application/json" id="(.*?)">(.*?)</script>', text, flags=re.DOTALL)
    assert [name for name, _ in inline] == ["fig10/thumbnail-1", "fig10/thumbnail-2"]
    assert json.loads(inline[1][1])["layout"]["title"]["text"] == NASTY
    assert text.count('class="figure"') == 2


def test_a_picture_is_shown_as_it_is_and_no_script_is_needed(folder: Path) -> None:
    night = tonight()
    pictured = replace(night.outcomes[0], thumbnails=("fig10/thumbnail-1.png",))
    found = read(replace(night, outcomes=(pictured, *night.outcomes[1:])), folder)
    assert "fig10/thumbnail-1.png" in found.addresses
    assert "<script" not in (folder / "index.html").read_text(encoding="utf-8")


def test_every_address_of_the_page_is_of_a_file_beside_it(folder: Path) -> None:
    (folder.parent / "2026-11-20").mkdir()
    (folder.parent / "2026-11-20" / "index.html").touch()
    addresses = read(tonight(), folder).addresses
    assert "../2026-11-20/index.html" in addresses
    # That night is gone, so nothing leads there.
    assert "../2026-11-19/index.html" not in addresses
    for address in addresses:
        assert (folder / address).is_file()


def test_a_night_without_history_or_figures_has_a_page_too(tmp_path: Path) -> None:
    night = replace(tonight(), outcomes=())
    text = page(night, compare_with_earlier(night, []), tmp_path, {})
    assert "this is the first of its preset and machine" in text


def test_only_the_last_six_figures_of_a_notebook_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(notebook_with(*(bars(str(number)) for number in range(9))))
    assert [figure["layout"]["title"]["text"] for figure in figures_of(path)] == list("345678")


def test_figures_of_notebooks_that_did_not_finish_are_none(folder: Path) -> None:
    assert set(night_figures(tonight(), folder)) == {"fig10/thumbnail-1", "fig10/thumbnail-2"}


def test_the_records_of_a_night_can_be_read_by_anybody(folder: Path) -> None:
    serialization.write(tonight(), folder / "night.json")
    assert serialization.read(folder / "night.json", NightlyRun).outcome("fig11").problem == "cell 3: boom"
