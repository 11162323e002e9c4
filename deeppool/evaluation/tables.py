"""Numbers and checks as tables, as text and as HTML."""

from collections.abc import Sequence
from functools import cache

import jinja2

from deeppool.evaluation.entries import Check, Number
from deeppool.planning.report.tables import render, table
from deeppool.units import format_bytes, format_seconds

NUMBER_HEADINGS = ("", "paper", "here", "basis", "why they differ")
CHECK_HEADINGS = ("check", "", "because")


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
    text = f"{value:.4g}" if abs(value) < 1e4 or value != round(value) else f"{value:.0f}"
    return text + unit if unit == "x" else f"{text} {unit}".rstrip()


def as_text(heading: str, numbers: Sequence[Number], checks: Sequence[Check]) -> str:
    """Returns the heading, the table of the numbers, and the table of the checks."""
    number_table = table(*NUMBER_HEADINGS[:-1])
    number_table.add_column(NUMBER_HEADINGS[-1], overflow="fold")
    for number in numbers:
        number_table.add_row(*number_row(number))
    check_table = table(CHECK_HEADINGS[0])
    check_table.add_column(CHECK_HEADINGS[1], no_wrap=True)
    check_table.add_column(CHECK_HEADINGS[2], overflow="fold")
    for check in checks:
        check_table.add_row(*check_row(check))
    return render(heading, *(each for each in (number_table, check_table) if each.row_count))


def as_html(heading: str, numbers: Sequence[Number], checks: Sequence[Check]) -> str:
    """Formats the contents of :func:`as_text` as HTML."""
    return html_templates().get_template("evaluation.html").render(heading=heading, rows=html_rows(numbers, checks))


def html_rows(numbers: Sequence[Number], checks: Sequence[Check]) -> dict[str, object]:
    """Returns the values of the template for numbers and checks."""
    return {
        "number_headings": NUMBER_HEADINGS,
        "number_rows": [number_row(number) for number in numbers],
        "check_headings": CHECK_HEADINGS,
        "check_rows": [check_row(check) for check in checks],
    }


def number_row(number: Number) -> tuple[str, ...]:
    """Returns the cells under :data:`NUMBER_HEADINGS`."""
    paper = number.paper
    if isinstance(paper, float | int):
        paper = format_value(paper, number.unit)
    here = format_value(number.value, number.unit)
    if number.spread is not None:
        here += f" ±{format_value(number.spread, number.unit)}"
    return number.name, paper or "–", here, number.basis, number.why


def check_row(check: Check) -> tuple[str, ...]:
    """Returns the cells under :data:`CHECK_HEADINGS`; of an expected failure the reason, too."""
    if check.holds or not check.known:
        return check.statement, "holds" if check.holds else "does not hold", check.detail
    return check.statement, "does not hold, as expected", "; ".join(filter(None, (check.detail, check.known)))
