"""The browser of records without a page: its lists, what it shows, what it compares, what it says of other files."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.planning.report.diff import PlanDiff
from deeppool.records.record_index import record_index
from deeppool.records.run_comparison import RunComparison
from deeppool.widgets import RunBrowser
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.run_browser import NOTHING, line, line_room
from tests.figures.records import run_of, two_layer_plan


def put(folder: Path, name: str, record: object, when: float) -> Path:
    path = dp.save(record, folder / name) if not isinstance(record, str) else folder / name
    if isinstance(record, str):
        path.write_text(record)
    os.utime(path, (when, when))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "plan.json", two_layer_plan(), 1)
    put(tmp_path, "wider.json", replace(two_layer_plan(), global_batch=128, iteration_time=0.04), 2)
    put(tmp_path, "run.json", run_of(), 3)
    put(tmp_path, "later.json", replace(run_of(), date="2026-11-22T05:00:00", global_batch=32), 4)
    put(tmp_path, "theirs.json", '{"a": 1}', 5)
    return tmp_path


def names(browser: RunBrowser) -> list[str]:
    return [path.name for _, path in browser.files.options]


def test_the_newest_record_is_shown_as_it_opens(folder: Path) -> None:
    browser = RunBrowser(folder)
    assert names(browser) == ["theirs.json", "later.json", "run.json", "wider.json", "plan.json"]
    assert browser.selected == dp.load(folder / "later.json")
    assert "4 records, and 1 other JSON file, the newest first" in browser.status.value
    assert [trace.name for trace in browser.figure.data] == [
        trace.name for trace in figures.collocation(browser.selected).data
    ]
    assert "harvest 30 %" in browser.text.value
    assert (browser.problem, browser.compared) == ("", None)


def test_another_file_is_shown_when_it_is_chosen(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.files.value = folder / "plan.json"
    assert browser.selected == two_layer_plan()
    assert browser.static().layout.title.text == figures.timeline(two_layer_plan()).layout.title.text
    assert "why not fewer" in browser.text.value


def test_a_file_that_is_no_record_says_why_and_shows_nothing_else(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.files.value = folder / "theirs.json"
    assert "field &#x27;format&#x27; is None" in browser.problem
    assert (browser.selected, browser.static(), browser.text.value) == (None, None, "")
    browser.files.value = folder / "run.json"
    assert (browser.problem, browser.selected) == ("", run_of())


def test_two_runs_are_compared_one_above_the_other(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.other.value = folder / "run.json"
    assert isinstance(browser.compared, RunComparison)
    # The older one first, whichever was chosen first.
    was = browser.compared
    browser.files.value, browser.other.value = folder / "run.json", folder / "later.json"
    assert browser.compared == was
    assert [row[0] for row in browser.compared.settings] == ["global batch"]
    headings = [note.text for note in browser.static().layout.annotations]
    assert ["before: " in text or "after: " in text for text in headings] == [True, True]
    assert "2026-11-21T05:00:00" in headings[0]
    assert "2026-11-22T05:00:00" in headings[1]
    assert "background throughput alone" in browser.text.value


def test_the_older_run_comes_first_where_its_file_is_the_newer_one(folder: Path) -> None:
    # As after a copy of the folder.
    put(folder, "run.json", run_of(), 8)
    browser = RunBrowser(folder)
    browser.files.value, browser.other.value = folder / "run.json", folder / "later.json"
    assert isinstance(browser.compared, RunComparison)
    assert "2026-11-21" in browser.compared.before
    assert "2026-11-22" in browser.compared.after


def test_two_plans_are_compared(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.files.value, browser.other.value = folder / "wider.json", folder / "plan.json"
    assert browser.compared == dp.diff(two_layer_plan(), dp.load(folder / "wider.json"))
    assert isinstance(browser.compared, PlanDiff)
    assert "global_batch" in browser.text.value
    browser.other.value = NOTHING
    assert browser.compared is None
    assert "why not fewer" in browser.text.value


def test_what_cannot_be_compared_is_reported(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.other.value = folder / "plan.json"
    assert "a plan and a run cannot be compared" in browser.problem
    assert (browser.compared, browser.text.value) == (None, "")


def test_a_new_file_is_found_and_what_was_chosen_stays(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.files.value, browser.other.value = folder / "wider.json", folder / "plan.json"
    put(folder, "new.json", run_of(background=False), 9)
    browser.scan.click()
    assert names(browser)[0] == "new.json"
    assert (browser.files.value, browser.other.value) == (folder / "wider.json", folder / "plan.json")
    assert isinstance(browser.compared, PlanDiff)
    (folder / "wider.json").unlink()
    browser.scan.click()
    assert browser.selected == run_of(background=False)


def test_a_file_that_has_changed_is_read_again(folder: Path) -> None:
    browser = RunBrowser(folder)
    put(folder, "later.json", run_of(background=False), 8)
    browser.scan.click()
    assert browser.selected == run_of(background=False)


def test_an_empty_folder_says_what_to_do_and_a_missing_one_that_it_is_missing(tmp_path: Path) -> None:
    browser = RunBrowser(tmp_path)
    assert "There are no records here yet" in browser.status.value
    assert (browser.selected, browser.static(), browser.files.disabled) == (None, None, True)
    browser.folder.value = str(tmp_path / "none")
    assert "No such file or directory" in browser.problem
    put(tmp_path, "run.json", run_of(), 1)
    browser.folder.value = str(tmp_path)
    assert (browser.problem, browser.selected) == ("", run_of())


def test_a_row_has_columns_that_a_list_box_does_not_fold(folder: Path) -> None:
    rows = [line(entry, line_room(None)) for entry in record_index(folder)]
    assert not any(" " in row for row in rows)
    assert len({row.index(kind) for row in rows for kind in ("plan\u00a0", "run\u00a0") if kind in row}) == 1
    assert rows[0].endswith("not\u00a0a\u00a0file\u00a0of\u00a0deeppool")
    assert max(map(len, rows)) < 115


@pytest.mark.parametrize("width", [232, 368, 568, 760, 934])
def test_a_narrow_list_has_fewer_columns_that_are_not_cut(folder: Path, width: int) -> None:
    browser = RunBrowser(folder)
    browser.files.value, browser.other.value = folder / "run.json", folder / "later.json"
    shown = browser.compared
    browser._page.width = width
    rows = [name for name, _ in browser.files.options if "theirs" not in name]
    kinds = ("run", "plan")
    assert all(any(f"\u00a0{kind}" in row for kind in kinds) for row in rows)
    assert all(len(row) <= line_room(width) for row in rows)
    assert [row.count(":") for row in rows] == [{232: 0, 368: 1, 568: 1, 760: 2, 934: 2}[width]] * 4
    # What was chosen stays, and is not compared again.
    assert (browser.files.value, browser.other.value) == (folder / "run.json", folder / "later.json")
    assert browser.compared is shown is not None


def test_a_new_figure_is_fitted_to_a_narrow_page_before_it_is_displayed(folder: Path) -> None:
    browser, displayed = RunBrowser(folder), []
    browser._page.width = 420
    browser._drawn.observe(lambda change: displayed.append(change.new[0].layout.height), "children")
    browser.files.value = folder / "plan.json"
    expected = LiveFigure(browser.static())
    expected.fit(420)
    assert displayed == [expected.layout.height]
    assert expected.layout.height > browser.static().layout.height


def test_a_dark_page_has_dark_figures(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.dark = True
    assert browser.figure.layout.template == figures.collocation(browser.selected, dark=True).layout.template


def test_a_kernel_that_asks_for_colours_gets_none_of_them_in_a_records_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    browser = RunBrowser(folder)
    for chosen, other in (("plan.json", "wider.json"), ("run.json", "later.json")):
        browser.files.value, browser.other.value = folder / chosen, NOTHING
        assert "\x1b" not in browser.text.value
        browser.other.value = folder / other
        assert browser.text.value
        assert "\x1b" not in browser.text.value


def test_tables_scroll_and_sentences_wrap_at_words(folder: Path) -> None:
    browser = RunBrowser(folder)
    browser.other.value = folder / "run.json"
    styles = re.findall(r'<pre style="(.*?)">([^<]*)<', browser.text.value)
    tables = [text for style, text in styles if "white-space: pre; overflow-x: auto" in style]
    assert tables
    assert all("──" in text for text in tables)
    assert all("word-break: normal" in style for style, _ in styles)
    assert "──" not in "".join(text for style, text in styles if "pre-wrap" in style)
