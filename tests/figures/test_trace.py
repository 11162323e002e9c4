"""Timelines as Chrome trace events: held against the format's rules here, and against Perfetto where it is at hand."""

import json
import shutil
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given

from deeppool import figures
from deeppool.base.timeline import Span, Timeline
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.figures import theme
from deeppool.simulation.plan.simulate import simulate
from tests.figures.records import run_of, timelines, two_layer_plan


def nanoseconds(microseconds):
    """As Perfetto reads a time."""
    return round(microseconds * 1000)


def check_trace(trace):
    """The rules of the format, and of Perfetto: an event that partly overlaps another of its thread is dropped."""
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, threads, processes = set(), defaultdict(list), {}
    for event in trace["traceEvents"]:
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert 0 < event["pid"] < 2**31 and 0 < event["tid"] < 2**31
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert processes.setdefault(event["tid"], event["pid"]) == event["pid"], "a thread id of two processes"
        if event["ph"] == "M":
            assert set(event) == {"ph", "pid", "tid", "name", "args"}
            named.add((event["name"], event["pid"] if event["name"].startswith("process") else event["tid"]))
        else:
            assert set(event) == {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"}
            assert event["ph"] == "X" and event["cat"] in theme.KINDS
            assert event["ts"] >= 0 and event["dur"] >= 0
            threads[event["tid"]].append(
                (nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"]))
            )
            assert ("process_name", event["pid"]) in named and ("thread_name", event["tid"]) in named
    for spans in threads.values():
        for one, two in pairwise(sorted(spans)):
            assert one[1] <= two[0], "events of one thread overlap"


def read_back(trace):
    """Every complete event as (process, thread, kind, name, start, duration), the names looked up."""
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in trace["traceEvents"]
        if event["ph"] == "M"
    }
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            process = names["process_name", event["pid"], event["pid"]]
            thread = names["thread_name", event["pid"], event["tid"]]
            times = nanoseconds(event["ts"]), nanoseconds(event["dur"])
            yield (process, thread, event["cat"], event["name"], *times)


def expected_events(*timelines):
    for timeline in timelines:
        for span in timeline.spans:
            thread = f"GPU {span.gpu}" + " background" * (span.kind == "background")
            start, end = round(span.start * 1e9), round(span.end * 1e9)
            yield (f"{timeline.title} ({timeline.provenance})", thread, span.kind, span.name, start, end - start)


@pytest.mark.slow
@given(timelines(), timelines())
def test_a_trace_keeps_the_formats_rules_and_its_events_are_the_spans_after_a_trip_through_json(one, other):
    trace = json.loads(json.dumps(figures.chrome_trace(one, other)))
    check_trace(trace)
    assert Counter(read_back(trace)) == Counter(expected_events(one, other))


def test_a_run_is_two_processes_one_predicted_one_measured():
    run = run_of()
    trace = figures.chrome_trace(run.plan_timeline, run.timeline)
    check_trace(trace)
    processes = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert processes == ["tiny, planned (predicted)", "tiny, one iteration (measured)"]


def test_a_background_that_overlaps_its_foreground_has_its_own_thread():
    threads = {
        thread for _, thread, kind, *_ in read_back(figures.chrome_trace(run_of().timeline)) if kind == "background"
    }
    assert threads == {f"GPU {gpu} background" for gpu in range(4)}


def test_adjacent_spans_touch_and_do_not_overlap_whatever_the_rounding():
    # Thirds of a microsecond: rounding start and duration apart would put 1 ns of one into the next.
    ends = [0.0]
    for _ in range(300):
        ends.append(ends[-1] + 1e-6 / 3)
    chain = tuple(Span(0, "forward", str(i), a, b) for i, (a, b) in enumerate(pairwise(ends)))
    trace = figures.chrome_trace(Timeline("t", "measured", 1, chain))
    check_trace(trace)
    events = sorted((start, start + duration) for *_, start, duration in read_back(trace))
    assert all(one[1] == two[0] for one, two in pairwise(events))


def test_a_written_trace_is_the_trace(tmp_path):
    timeline = simulate(two_layer_plan()).timeline
    path = figures.write_trace(tmp_path / "trace.json", timeline)
    assert json.loads(path.read_text()) == figures.chrome_trace(timeline)
    assert list(tmp_path.iterdir()) == [path]


def test_a_trace_that_cannot_be_written_names_the_path(tmp_path):
    with pytest.raises(DocumentError, match="there is no folder"):
        figures.write_trace(tmp_path / "missing" / "trace.json", simulate(two_layer_plan()).timeline)


def test_what_is_not_a_timeline_is_answered_with_where_one_is():
    with pytest.raises(InvalidValueError, match=r"timelines\[0\] must be a Timeline, got a Simulation \(.*\.timeline"):
        figures.chrome_trace(simulate(two_layer_plan()))
    with pytest.raises(InvalidValueError, match="nothing to write"):
        figures.chrome_trace()


@pytest.fixture
def perfetto(tmp_path, monkeypatch):
    """Opens a trace in the real trace processor, whose program the package downloads when it is first used."""
    processor = pytest.importorskip("perfetto.trace_processor", reason="the package perfetto is not installed")
    # The package calls curl without a limit; a machine without that network would wait for long.
    (tmp_path / ".curlrc").write_text("connect-timeout = 5\nmax-time = 60\n")
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    program = shutil.which("trace_processor_shell")
    opened = []

    def open_trace(path):
        try:
            config = processor.TraceProcessorConfig(bin_path=program)
            opened.append(processor.TraceProcessor(trace=str(path), config=config))
        except Exception as error:
            if "trace_processor_shell" in str(error) and "curl" in str(error):
                pytest.skip("perfetto's trace_processor_shell is neither on the PATH nor can it be downloaded here")
            raise
        return opened[0]

    yield open_trace
    for one in opened:
        one.close()


def test_perfetto_reads_every_span(perfetto, tmp_path):
    run = run_of()
    path = figures.write_trace(tmp_path / "trace.json", run.plan_timeline, run.timeline)
    processor = perfetto(path)
    rows = processor.query(
        "select process.name as process, thread.name as thread, category, slice.name as name, ts, dur from slice "
        "join thread_track on slice.track_id = thread_track.id join thread on thread.utid = thread_track.utid "
        "join process on process.upid = thread.upid"
    )
    found = Counter((row.process, row.thread, row.category, row.name, row.ts, row.dur) for row in rows)
    assert found == Counter(expected_events(run.plan_timeline, run.timeline))
    problems = processor.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    assert [(row.name, row.value) for row in problems] == []
