"""Timelines as Chrome trace events, for https://ui.perfetto.dev and chrome://tracing.

The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A process is a
timeline, a thread a GPU; a background job has a thread of its own beside its GPU's, because
Perfetto drops an event that partly overlaps another of its thread.
"""

import json
import os
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.timeline import Span, Timeline
from deeppool.errors import InvalidValueError

_THREADS = 1_000_000
"""Thread ids per process: readers of the format look a thread up by its id alone."""


@typed
def chrome_trace(*timelines: Timeline) -> dict[str, Any]:
    """Returns one process per timeline, one thread per GPU, one complete event per span; times in microseconds.

    Raises:
        InvalidValueError: no timeline, or something else.
    """
    if not timelines:
        raise InvalidValueError("chrome_trace got nothing to write, expected at least one Timeline")
    events: list[dict[str, Any]] = []
    for process, timeline in enumerate(timelines, start=1):
        events += _names(process, timeline)
        events += [_event(process, span, timeline) for span in timeline.spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


@typed
def write_trace(path: str | os.PathLike[str], *timelines: Timeline) -> Path:
    """Writes :func:`chrome_trace` of the timelines, whole or not at all.

    Raises:
        InvalidValueError: no timeline, or something else.
        DocumentError: the path cannot be written.
    """
    return serialization.write_text(json.dumps(chrome_trace(*timelines)) + "\n", path)


def _names(process: int, timeline: Timeline) -> list[dict[str, Any]]:
    title = f"{timeline.title} ({timeline.provenance})"
    threads = {_thread(process, span): _thread_name(span) for span in timeline.spans}
    events = [
        _metadata(process, process, "process_name", name=title),
        _metadata(process, process, "process_sort_index", sort_index=process),
    ]
    for thread, name in sorted(threads.items()):
        events += [
            _metadata(process, thread, "thread_name", name=name),
            _metadata(process, thread, "thread_sort_index", sort_index=thread),
        ]
    return events


def _metadata(process: int, thread: int, what: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": args}


def _event(process: int, span: Span, timeline: Timeline) -> dict[str, Any]:
    # On the grid of whole nanoseconds that readers keep: rounding a start and a duration apart could
    # make adjacent spans overlap.
    start, end = round(span.start * 1e9), round(span.end * 1e9)
    return {
        "ph": "X",
        "pid": process,
        "tid": _thread(process, span),
        "name": span.name,
        "cat": span.kind,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": {"gpu": span.gpu, "provenance": timeline.provenance},
    }


def _thread(process: int, span: Span) -> int:
    """Returns the thread id of a GPU, followed by that of its background job."""
    return process * _THREADS + 2 * span.gpu + (span.kind == "background")


def _thread_name(span: Span) -> str:
    return f"GPU {span.gpu} background" if span.kind == "background" else f"GPU {span.gpu}"
