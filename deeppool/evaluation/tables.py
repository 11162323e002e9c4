"""Numbers and checks as tables, as text and as HTML."""

from collections.abc import Sequence
from decimal import Decimal
from functools import cache

import jinja2

from deeppool.evaluation.entries import Check, Number
from deeppool.evaluation.paper_values import PaperValue, PaperValues
from deeppool.planning.report.tables import render, table
from deeppool.units import format_bytes, format_seconds

NUMBER_HEADINGS = ("", "paper", "here", "basis", "why they differ")
PAPER_HEADINGS = ("in the paper", "", "its words", "beside it here")
CHECK_HEADINGS = ("check", "", "because")
_INNER_QUOTES = str.maketrans("“”", "‘’")
"""Of quotes within quotes."""


@cache
def html_templates() -> jinja2.Environment:
    """Returns the templates of this package; values are escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("deeppool.evaluation", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def format_value(value: float, unit: str) -> str:
    """Formats a value with its unit: ``3.2 ms`` for 0.0032 and ``s``, ``1.4x`` for 1.4 and ``x``."""
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    # From 10,000 on, four digits would come with an exponent, as below a ten thousandth.
    rounded = value if value == round(value) else float(f"{value:.4g}")
    text = f"{Decimal(f'{value:.4g}'):f}" if abs(rounded) < 1e4 else f"{rounded:.0f}"
    return text + unit if unit == "x" else f"{text} {unit}".rstrip()


def as_text(heading: str, numbers: Sequence[Number], checks: Sequence[Check], paper: PaperValues) -> str:
    """Returns the heading, and the tables of the numbers, of the paper's words and of the checks."""
    tables = []
    for headings, rows in _tables(numbers, checks, paper):
        # Numbers stay whole; what is said about them folds.
        whole = {NUMBER_HEADINGS: 4, PAPER_HEADINGS: 1, CHECK_HEADINGS: 2}[headings]
        one = table(*headings[:whole])
        for wide in headings[whole:]:
            one.add_column(wide, overflow="fold")
        for row in rows:
            one.add_row(*row)
        tables.append(one)
    return render(heading, *tables)


def as_html(heading: str, numbers: Sequence[Number], checks: Sequence[Check], paper: PaperValues) -> str:
    """Formats the contents of :func:`as_text` as HTML."""
    page = html_templates().get_template("evaluation.html")
    return page.render(heading=heading, tables=html_tables(numbers, checks, paper))


def html_tables(
    numbers: Sequence[Number], checks: Sequence[Check], paper: PaperValues
) -> list[tuple[tuple[str, ...], list[tuple[str, ...]], str]]:
    """Returns the tables for the templates: headings, rows, class."""
    return [
        (headings, rows, "dp-numbers" * (headings == NUMBER_HEADINGS))
        for headings, rows in _tables(numbers, checks, paper)
    ]


def _tables(
    numbers: Sequence[Number], checks: Sequence[Check], paper: PaperValues
) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Returns headings and rows of those tables that have rows."""
    none = "not printed" if paper.title else "–"
    beside = [paper.beside(number.name) for number in numbers]
    tables = [
        (NUMBER_HEADINGS, [number_row(number, none) for number in numbers]),
        (PAPER_HEADINGS, [paper_row(value, beside.count(value)) for value in paper.values]),
        (CHECK_HEADINGS, [check_row(check) for check in checks]),
    ]
    if paper.title:
        tables[1][1].insert(0, ("title", "", paper.title, ""))
    if paper.unprinted:
        tables[1][1].append(("all others", "not printed", paper.unprinted, ""))
    return [(headings, rows) for headings, rows in tables if rows]


def number_row(number: Number, none: str) -> tuple[str, ...]:
    """Returns the cells under :data:`NUMBER_HEADINGS`; ``none`` stands where the paper has no value."""
    here = format_value(number.value, number.unit)
    if number.spread is not None:
        here += f" ±{format_value(number.spread, number.unit)}"
    paper = number.paper
    if isinstance(paper, float | int):
        paper = format_value(paper, number.unit)
    return number.name, paper or none, here, number.basis, number.why


def paper_row(value: PaperValue, beside: int) -> tuple[str, ...]:
    """Returns the cells under :data:`PAPER_HEADINGS`; ``beside`` counts the evaluation's numbers beside the value."""
    printed = value.value if isinstance(value.value, str) else format_value(value.value, value.unit)
    here = value.missing or {0: "not with these parameters", 1: "above"}.get(beside, f"above, {beside} numbers")
    quote = value.quote.translate(_INNER_QUOTES)
    return value.name, printed, f"{value.place}: “{quote}”", here


def check_row(check: Check) -> tuple[str, ...]:
    """Returns the cells under :data:`CHECK_HEADINGS`, with the reason if it is expected to fail, or cannot."""
    if check.holds and check.inapplicable:
        return check.statement, "not applicable", "; ".join(filter(None, (check.detail, check.inapplicable)))
    if check.holds or not check.known:
        return check.statement, "holds" if check.holds else "does not hold", check.detail
    return check.statement, "does not hold, as expected", "; ".join(filter(None, (check.detail, check.known)))
