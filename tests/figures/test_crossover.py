"""Every span of a crossover is a bar in its rank's row, and gains stand where they were measured."""

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.comparison_record import CrossoverComparison, OrderTimes
from deeppool.interleaving.crossover.record import CrossoverSpan
from deeppool.interleaving.crossover.round_time import JobCosts

SPANS = (
    CrossoverSpan(0, "a <b>", "compute", 0, 0.0, 0.1),
    CrossoverSpan(1, "a <b>", "compute", 0, 0.0, 0.12),
    CrossoverSpan(0, "a <b>", "transfer", 0, 0.12, 0.2),
    CrossoverSpan(0, "c", "compute", 0, 0.1, 0.25),
    CrossoverSpan(1, "c", "update", 1, 0.3, 0.31),
)


def comparison(ratio: float = 1.0, spans: tuple[CrossoverSpan, ...] = SPANS) -> CrossoverComparison:
    return CrossoverComparison(
        jobs=(JobCosts("a <b>", 1.0, ratio), JobCosts("c", 1.0, ratio)),
        orders=(
            OrderTimes("crossover", (2.0, 2.2, 2.0, 2.2), 2.0),
            OrderTimes("one after the other", (4.0, 4.4, 4.0, 4.4), 4.0),
            OrderTimes("shifted", (3.0, 3.3, 3.0, 3.3), None),
        ),
        ranks=2,
        device_name="made by hand",
        all_reduce="library",
        repetitions=2,
        spans=spans,
        date="2026-11-24",
        versions={},
    )


def test_every_span_is_a_bar_in_the_row_of_its_rank() -> None:
    figure = figures.of(comparison(), dark=True)
    labels = figure.layout.yaxis.ticktext
    drawn = {
        (labels[row], trace.name, base, base + length)
        for trace in figure.data
        for row, base, length in zip(trace.y, trace.base, trace.x, strict=True)
    }
    assert len(drawn) == len(SPANS)
    assert ("rank 0 transfers", "a &lt;b&gt;", 120.0, 200.0) in drawn
    assert ("rank 1 computes", "c", 300.0, 310.0) in drawn
    assert figure.data[0].marker.color != figure.data[1].marker.color
    assert figure.data[0].customdata[0][-1] == "a &lt;b&gt;"
    with pytest.raises(InvalidValueError, match="no rounds to draw"):
        figures.crossover(comparison(spans=()))


def test_gains_stand_at_their_ratio_beside_the_formula() -> None:
    figure = figures.crossover_gain([comparison(0.5), comparison(2.0)])
    traces = {trace.name: trace for trace in figure.data}
    assert set(traces) == {"over one after the other, formula", "over one after the other", "over shifted"}
    assert traces["over one after the other"].x == (0.5, 2.0)
    assert traces["over one after the other"].y == pytest.approx((2.0, 2.0))
    assert traces["over shifted"].y == pytest.approx((1.5, 1.5))
    formula = traces["over one after the other, formula"]
    assert max(formula.y) == pytest.approx(2.0, rel=0.01)
    assert min(formula.y) >= 1.0
    with pytest.raises(InvalidValueError, match="one comparison or more"):
        figures.crossover_gain([])


def test_a_comparison_prints_what_it_measured() -> None:
    text = str(comparison())
    assert "crossover: 2.1 s a round, formula 2 s" in text
    assert "one after the other: 4.2 s a round, formula 4 s; 2.00 ± 0.00 times the crossover" in text
    assert "shifted: 3.15 s a round; 1.50" in text
    with pytest.raises(InvalidValueError, match="'data parallel' was not measured"):
        comparison().times("data parallel")
