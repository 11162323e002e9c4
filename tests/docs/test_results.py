"""The page of results has every result that a README of a benchmark marks, and nothing else has any."""

import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from docs import results

CHECKOUT = Path(__file__).parents[2]
README = """# How fast is it?

**In short.** Twice as fast,
on one machine.

Measured by turns.

<!-- result
title: One machine
basis: measured
machine: two cores
date: 2026-11-25
command: python benchmarks/speed/main.py
values: median of three
-->
| model | ms |
|---|---|
| vgg16 | 7 |
<!-- end of result -->

What was learnt.
"""


def test_the_page_is_what_the_readmes_say() -> None:
    page = results.PAGE.read_text(encoding="utf-8")
    assert page == results.page(page, results.readmes()), "docs/results.md is stale (make results)"


def test_every_table_of_a_result_is_on_the_page_word_for_word() -> None:
    """By another way than the page is made: row by row, between the marks."""
    page = set(results.PAGE.read_text(encoding="utf-8").splitlines())
    for text in results.readmes().values():
        is_marked = False
        for line in text.splitlines():
            is_marked = (is_marked or line == "<!-- result") and line != "<!-- end of result -->"
            assert not (is_marked and line.startswith("| ")) or line in page, line


@pytest.mark.parametrize("folder", sorted(path.name for path in CHECKOUT.glob("benchmarks/*/")))
def test_a_benchmark_marks_its_results_or_says_that_it_has_none(folder: str) -> None:
    if folder.startswith("__"):
        pytest.skip("not a benchmark")
    text = results.readmes()[folder]
    found = list(results.results(folder, text))
    assert found or "Not measured yet" in text
    for result in found:
        for script in re.findall(r"python (benchmarks/\S+\.py)", result.command):
            assert (CHECKOUT / script).is_file(), script
        for module in re.findall(r"python -m (benchmarks\.\S+)", result.command):
            assert (CHECKOUT / f"{module.replace('.', '/')}.py").is_file(), module


def test_what_the_readme_of_the_project_repeats_is_on_the_page() -> None:
    number = r"(\d+(?:\.\d+)?)"
    told = 0
    for interval in (f"{number} ± {number}", rf"{number} \({number} … {number}\)"):
        measured = re.findall(interval, results.PAGE.read_text(encoding="utf-8"))
        for each in re.findall(interval, (CHECKOUT / "README.md").read_text(encoding="utf-8")):
            assert any(all(map(rounds_to, known, each)) for known in measured), each
            told += 1
    assert told >= 6


def rounds_to(known: str, told: str) -> bool:
    return Decimal(known).quantize(Decimal(told), ROUND_HALF_UP) == Decimal(told)


def test_a_changed_readme_changes_the_page_and_what_stands_by_hand_stays() -> None:
    before = f"# Results\n\nBy hand.\n\n{results.MARK}\n\n| old | 9 |\n"
    page = results.page(before, {"speed": README})
    assert page.startswith(f"# Results\n\nBy hand.\n\n{results.MARK}")
    assert "| old | 9 |" not in page and "What was learnt" not in page
    assert "| [How fast is it?](#speed) | Twice as fast, on one machine. |" in page
    assert "*Measured* on two cores, 2026-11-25. Values: median of three." in page
    assert "```\npython benchmarks/speed/main.py\n```\n\n| model | ms |" in page
    assert "| vgg16 | 8 |" in results.page(page, {"speed": README.replace("| 7 |", "| 8 |")})


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("machine: two cores\n", "", "a result has title, basis, machine"),
        ("basis: measured", "basis: guessed", "must be one of measured, emulated"),
        ("2026-11-25", "yesterday", "must be YYYY-MM-DD, got 'yesterday'"),
        ("<!-- end of result -->\n", "", "needs its '<!-- end of result -->'"),
        ("**In short.**", "Briefly:", "begins with **In short.**"),
    ],
)
def test_a_result_that_does_not_say_where_it_comes_from_is_refused(right: str, wrong: str, error: str) -> None:
    with pytest.raises(results.ResultError, match=re.escape(error)):
        results.page("", {"speed": README.replace(right, wrong)})


@pytest.mark.parametrize("page", sorted(CHECKOUT.glob("docs/*.md")), ids=lambda page: page.name)
def test_guides_have_no_measurements(page: Path) -> None:
    """What shows the output of a command, in a block, is an example."""
    if page == results.PAGE:
        pytest.skip("the page of results")
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\d{4}-\d\d-\d\d|\d ± \d|\d \(\d[\d.]* … \d[\d.]*\)|errors? of \d+ %", text) == []
