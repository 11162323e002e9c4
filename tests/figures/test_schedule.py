"""A drawn schedule shows each transfer once, from its source to its destination."""

import re
from collections import Counter

import pytest

from deeppool import figures
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.patterns.ring import ring
from deeppool.costs.schedules import schedule_time
from deeppool.errors import InvalidValueError

CLUSTER = Cluster(8, "two <nodes>", 4, Link(1e9, 1e-5, "made by hand"), Link(1e8, 1e-4, "made by hand"))


def arrows(figure):
    """What a reader reads off: name of the trace, source, destination, start, end, symbol, hover text."""
    for trace in figure.data:
        for at in range(0, len(trace.x), 3):
            assert (trace.x[at + 2], trace.y[at + 2]) == (None, None), "a gap between two arrows"
            source, destination = trace.y[at : at + 2]
            yield (
                trace.name,
                source,
                destination,
                *trace.x[at : at + 2],
                trace.marker.symbol[at + 1],
                trace.text[at + 1],
            )


@pytest.mark.parametrize("name", ALL_REDUCES)
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_every_transfer_is_an_arrow(name, ranks):
    schedule = ALL_REDUCES[name](ranks, 4)
    expected = Counter(
        (number, transfer.source, transfer.destination, transfer.reduces)
        for number, transfers in enumerate(schedule.transfers())
        for transfer in transfers
    )
    drawn = Counter()
    for chunks, source, destination, start, end, symbol, text in arrows(figures.schedule(schedule)):
        drawn[start, source, destination, symbol == "arrow"] += 1
        assert start < end < start + 1
        assert text.startswith(f"<b>{chunks}</b><br>rank {source} to rank {destination}")
        assert text.endswith(f"round {start}")
    assert drawn == expected


def test_on_a_cluster_the_axis_is_the_predicted_time():
    schedule = ALL_REDUCES["hierarchical"](8, 4)
    figure = figures.schedule(schedule, CLUSTER, 10**6, dark=True)
    whole = schedule_time(CLUSTER, schedule, 10**6)
    found = list(arrows(figure))
    assert len(found) == sum(step.kind == "send" for step in schedule.steps)
    assert max(end for *_, end, _, _ in found) == pytest.approx(1e3 * whole)
    assert figure.layout.xaxis.title.text == "time (ms)"
    assert "predicted" in figure.layout.title.subtitle.text
    assert "two &lt;nodes&gt;" in figure.layout.title.subtitle.text
    assert all(re.search(r"KiB<br>from .* to .*, predicted", text) for *_, text in found)


def test_each_range_of_chunks_has_a_colour_of_its_own():
    for ranks in (4, 16):
        figure = figures.schedule(ring(ranks))
        assert len({trace.line.color for trace in figure.data}) == len(figure.data) == ranks
        assert figure.data[0].showlegend == (ranks == 4)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InvalidValueError, match=r"ring of 1 ranks.* has no transfers to draw"):
        figures.schedule(ring(1))
    with pytest.raises(InvalidValueError, match="both a cluster and a size"):
        figures.schedule(ring(2), CLUSTER)
    with pytest.raises(InvalidValueError, match="both a cluster and a size"):
        figures.schedule(ring(2), size=4)
    with pytest.raises(InvalidValueError, match="steps must be a Schedule, got 4"):
        figures.schedule(4)
    assert figures.of(ring(3)) == figures.schedule(ring(3))
