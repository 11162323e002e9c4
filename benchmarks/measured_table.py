"""Ways that were measured by turns as a table, a row for each, for the README of a benchmark."""

import statistics
from collections.abc import Iterable

from deeppool.records.confidence_interval import format_with_interval
from deeppool.records.measured_ways import MeasuredComparison


def measured_table(what: str, measured: Iterable[tuple[str, MeasuredComparison]]) -> str:
    """Returns medians (quartiles), what was predicted with its error, and gains over the fastest control.

    Args:
        what: heading of the texts beside the records.
        measured: a text, such as a setting, and the record for each.
    """
    lines = [f"| {what} | way | ms | predicted | over the fastest control | faster | |", "|---" * 7 + "|"]
    for text, record in measured:
        for way in record.ways:
            low, median, high = (1e3 * value for value in statistics.quantiles(way.seconds, n=4))
            lead, (gain, words) = record.lead(way.name), record.standing(way.name)
            expected = (
                "" if way.predicted is None else f"{1e3 * way.predicted:.0f} ({1e3 * way.predicted / median - 1:+.0%})"
            )
            over = f"**{format_with_interval(*gain)}** {lead.over}" if lead else words
            cells = (f"{median:.0f} ({low:.0f} … {high:.0f})", expected, over, lead.verdict if lead else "")
            lines.append(f"| {text} | {way.name} | {' | '.join(cells)} | {record.about(way).strip(' ;,')} |")
    return "\n".join(lines)
