"""A measured round of all ranks as a timeline, in which waves of one rank have rows of their own."""

from collections.abc import Sequence

from deeppool.base.timeline import Span, Timeline
from deeppool.processes.managed_process import Message


def timeline_of(name: str, answers: Sequence[Message], lanes: Sequence[str]) -> Timeline | None:
    """Returns the last round of all ranks, with a row per rank, or one for each of its lanes.

    Args:
        name: title.
        answers: of all ranks, whose clocks are one.
        lanes: words in brackets after a span's name that give it a row of its own; others are on the first.
    """
    spans = [(rank, *span) for rank, answer in enumerate(answers) for span in answer["spans"]]
    if not spans:
        return None
    origin, count = min(start for *_, start, _ in spans), max(1, len(lanes))
    found = []
    for rank, kind, _, what, start, end in spans:
        lane = next((place for place, each in enumerate(lanes) if f"({each})" in what), 0)
        found.append(Span(rank * count + lane, kind, what, start - origin, end - origin))
    rows = tuple(f"rank {rank} {lane}".strip() for rank in range(len(answers)) for lane in lanes or ("",))
    return Timeline(name, "measured", len(rows), tuple(found), rows)
