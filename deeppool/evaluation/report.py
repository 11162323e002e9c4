"""An evaluation as tables for people: the paper's numbers beside these, why they differ, and what holds."""

from collections.abc import Sequence
from html import escape

from deeppool.evaluation.record import Check, Evaluation, Number
from deeppool.planning.report.tables import render, table
from deeppool.units import format_bytes, format_seconds

NUMBERS = "dp-numbers"
"""Kind of a table with a name in the first column and values in the next three."""
NUMBER_HEADINGS = ("", "paper", "here", "basis", "why they differ")
CHECK_HEADINGS = ("check", "", "because")


def format_value(value: float, unit: str) -> str:
    """``0.0032`` and ``s`` become ``3.2 ms``, ``1.4`` and ``x`` become ``1.4x``."""
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    text = f"{value:.4g}" if abs(value) < 1e4 or value != round(value) else f"{value:.0f}"
    return text + unit if unit == "x" else f"{text} {unit}".rstrip()


def as_text(evaluation: Evaluation) -> str:
    """A line, the table of the numbers, the table of the checks."""
    numbers = table(*NUMBER_HEADINGS[:-1])
    numbers.add_column(NUMBER_HEADINGS[-1], overflow="fold")
    for number in evaluation.numbers:
        numbers.add_row(*number_row(number))
    checks = table(CHECK_HEADINGS[0])
    checks.add_column(CHECK_HEADINGS[1], no_wrap=True)
    checks.add_column(CHECK_HEADINGS[2], overflow="fold")
    for check in evaluation.checks:
        checks.add_row(*check_row(check))
    return render(heading(evaluation), *(each for each in (numbers, checks) if each.row_count))


def as_html(evaluation: Evaluation) -> str:
    """The same, as HTML."""
    parts = [f"<p><b>{escape(heading(evaluation))}</b></p>"]
    if evaluation.numbers:
        parts.append(html_table(NUMBER_HEADINGS, [number_row(number) for number in evaluation.numbers], NUMBERS))
    if evaluation.checks:
        parts.append(html_table(CHECK_HEADINGS, [check_row(check) for check in evaluation.checks]))
    return "\n".join(parts)


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Cells are escaped here; ``kind`` is a class for the page's style."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="dp-table {kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def heading(evaluation: Evaluation) -> str:
    """The evaluation in a line."""
    return f"{evaluation.title} ({evaluation.name}; {evaluation.device}, {evaluation.date})"


def number_row(number: Number) -> tuple[str, ...]:
    """Name, paper, here, basis, why."""
    paper = number.paper
    if isinstance(paper, float | int):
        paper = format_value(paper, number.unit)
    here = format_value(number.value, number.unit)
    if number.spread is not None:
        here += f" ±{format_value(number.spread, number.unit)}"
    return number.name, paper or "–", here, number.basis, number.why


def check_row(check: Check) -> tuple[str, ...]:
    """Statement, whether it holds, the values and, where it does not, why that is known."""
    if check.holds or not check.known:
        return check.statement, "holds" if check.holds else "does not hold", check.detail
    return check.statement, "does not hold, as is known", "; ".join(filter(None, (check.detail, check.known)))
