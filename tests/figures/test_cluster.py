"""What the figures of a simulated cluster show."""

from dataclasses import replace

import numpy as np
import pytest

from deeppool import figures
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.cluster import blocks_of
from deeppool.simulation.cluster.comparison import compare_strategies
from deeppool.simulation.cluster.simulate import simulate_cluster
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace, single_foreground_trace
from tests.figures.records import layer, plan_of
from tests.simulation.cluster.random_traces import random_trace
from tests.strategies import make_graph, profile_from_times

CLUSTER = Cluster(4, "by hand", 4, Link(1e12, 0.0, "by hand"), Link(1e12, 0.0, "by hand"), None)
BACK = replace(profile_from_times(make_graph([()]), [lambda b: 1.0], (4, 16)), device_name="Test CPU")
HALF = plan_of(layer("conv", 2, forward=1.0), layer("fc", 1, forward=1.0), gpus=2)
SOURCES = {"half": HALF, "back": BACK}


def small():
    """Two foregrounds of ten seconds one after another on GPUs 0 and 1; a background of 8 s in the gaps of GPU 1."""
    jobs = [
        TraceJob(name=name, role="foreground", source="half", iterations=5, arrival=at)
        for name, at in (("first", 0.0), ("second", 10.0))
    ]
    filler = TraceJob(name="filler", role="background", source="back", iterations=100, gpus=3, arrival=0.0)
    jobs.append(filler)
    trace = WorkloadTrace("by hand", "written for a test", tuple(jobs))
    return simulate_cluster(trace, CLUSTER, sources=SOURCES, until=20.0)


def test_blocks_join_neighbouring_gpus_and_stretches_of_one_job():
    found = [(x.kind, x.job, x.first, x.count, x.start, x.end) for x in blocks_of(small())]
    assert found == [
        ("foreground", "first", 0, 2, 0.0, 10.0),
        ("background in gaps", "filler", 0, 1, 0.0, 20.0),
        ("background", "filler", 2, 2, 0.0, 20.0),
        ("foreground", "second", 0, 2, 10.0, 20.0),
    ]
    shares = {x.job: x.share for x in blocks_of(small()) if x.kind == "foreground"}
    assert shares == {"first": pytest.approx(0.75), "second": pytest.approx(0.75)}


def test_bars_lie_where_the_jobs_were():
    figure = figures.cluster(small())
    bars = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    assert set(bars) == {"foreground", "background", "background in gaps"}
    assert list(bars["foreground"].base) == [0.0, 10.0]
    assert list(bars["foreground"].x) == [10.0, 10.0]
    assert list(bars["foreground"].y) == [0.5, 0.5]
    assert bars["foreground"].text == ("first", "second")
    assert len(set(bars["foreground"].marker.color)) == 2
    assert bars["background"].marker.color == theme.colour("background")
    assert bars["background in gaps"].marker.color != theme.colour("background")


def test_blocks_cover_what_the_record_has_on_a_large_cluster():
    kinds = [TraceJob(name="f", role="foreground", source="half", iterations=50)]
    kinds.append(TraceJob(name="b", role="background", source="back", iterations=20, gpus=8))
    trace = random_trace(kinds, jobs=60, interval=3.0, seed=2)
    found = simulate_cluster(trace, Cluster(64), sources=SOURCES)
    blocks = blocks_of(found)
    own = {kind: sum(x.count * (x.end - x.start) * x.share for x in blocks if x.kind in kind) for kind in KINDS}
    assert own[("foreground",)] == pytest.approx(found.gpu_seconds.foreground)
    assert own[("background", "background in gaps")] == pytest.approx(found.gpu_seconds.background)
    assert len(blocks) < 60 * 8


KINDS = (("foreground",), ("background", "background in gaps"))


def test_throughput_is_stacked_and_reaches_to_the_end():
    found = small()
    lines = [trace for trace in figures.cluster(found).data if trace.type == "scatter"]
    assert [line.name for line in lines] == ["foreground throughput", "background throughput"]
    assert {line.stackgroup for line in lines} == {"cluster"}
    assert all(line.line.shape == "hv" for line in lines)
    assert lines[0].x[-1] == pytest.approx(found.makespan)
    widths = np.diff(lines[0].x)
    assert float(np.dot(widths, lines[0].y[:-1])) == pytest.approx(
        sum(job.samples for job in found.jobs if job.role == "foreground")
    )


def test_axes_have_units_and_the_subtitle_says_predicted():
    figure = figures.cluster(small(), dark=True)
    assert figure.layout.xaxis3.title.text == "time from the start of the trace (s)"
    assert figure.layout.yaxis3.title.text == "samples/s"
    assert (figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text) == ("GPU", "GPU")
    subtitle = figure.layout.title.subtitle.text
    assert subtitle.startswith("<b>predicted</b> from estimated layer times; no interference modelled")
    assert figure.layout.title.text == "by hand: collocated on 4 GPUs"


def test_a_long_simulation_is_reported_in_hours():
    job = TraceJob(name="long", role="foreground", source="half", iterations=20_000)
    found = simulate_cluster(WorkloadTrace("long", "by hand", (job,)), CLUSTER, sources=SOURCES)
    assert figures.cluster(found).layout.xaxis3.title.text == "time from the start of the trace (h)"


def test_strategies_are_bars_of_their_throughput_and_time():
    steady = single_foreground_trace("back", 4, 16, iterations=5)
    found = compare_strategies(steady, CLUSTER, sources=SOURCES)
    front, back, time = figures.strategies(found).data
    labels = [result.label for result in found.results]
    assert list(front.y) == list(back.y) == list(time.y) == labels
    assert list(front.x) == [result.foreground_throughput for result in found.results]
    assert list(back.x) == [result.background_throughput for result in found.results]
    assert list(time.x) == pytest.approx([result.completion_time for result in found.results])
    figure = figures.strategies(found)
    assert figure.layout.barmode == "stack"
    assert figure.layout.xaxis2.title.text == "mean completion time (s); speed-up"
    assert "left out" not in figure.layout.title.subtitle.text
    fewer = (replace(found.results[0], unfinished=2), *found.results[1:])
    figure = figures.strategies(replace(found, results=fewer, left_out=("collocated: no plan fits",)))
    assert figure.data[0].y[0] == "data-parallel, 2 unfinished"
    assert figure.layout.title.subtitle.text.replace("<br>", " ").endswith("; left out, too little memory: collocated")


def test_only_what_they_draw_is_drawn():
    with pytest.raises(InvalidValueError, match="simulation must be a ClusterSimulation, got a Plan"):
        figures.cluster(HALF)
    with pytest.raises(InvalidValueError, match="comparison must be a ClusterComparison, got a Plan"):
        figures.strategies(HALF)
