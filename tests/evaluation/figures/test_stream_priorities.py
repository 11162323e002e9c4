"""Times behind a long queue: a row for each kind of queue, a bar for each pair of priorities."""

import pytest

from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures
from deeppool.evaluation.experiments.stream_priorities import PriorityEffect
from deeppool.figures import theme


def test_rows_are_queues_and_bars_are_pairs_of_priorities():
    found = (PriorityEffect("waves", "high", "low", 1e-5, 4e-5), PriorityEffect("waves", "low", "low", 1e-5, 1e-3))
    figure = figures.stream_priorities({"a queue each": found, "one queue": found[:1]}, "emulated on h200")
    high, low = figure.data
    assert high.name == "captured at high, replayed at low priority"
    assert list(high.y) == ["waves, a queue each", "waves, one queue"]
    assert list(high.x) == pytest.approx([40, 40])
    assert (list(low.y), list(low.x)) == (["waves, a queue each"], pytest.approx([1000]))
    # Plotly's legend has the opacity of a trace, and leaves out that of a marker.
    assert (high.opacity, low.opacity) == (0.6, 1)
    assert high.marker.opacity is None
    # Bars of one queue must not hide each other.
    assert figure.layout.barmode == "group"
    assert figure.layout.title.subtitle.text == "emulated on h200; alone it takes 10 us"
    # Without a format plotly writes 20 and 200 as "2".
    axis = figure.layout.xaxis
    assert axis.title.text.endswith(", log)")
    assert {"dtick": axis.dtick, "tickformat": axis.tickformat} == theme.log_ticks([40, 1000])


@pytest.mark.parametrize("effects", [{}, {"a queue each": ()}])
def test_no_times_are_refused(effects):
    with pytest.raises(InvalidValueError, match="stream_priorities cannot draw nothing"):
        figures.stream_priorities(effects, "emulated")
