"""Every span of a crossover is a bar in its rank's row, and gains stand where they were measured."""

from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.interleaving.crossover.comparison_record import CrossoverComparison
from deeppool.interleaving.crossover.record import CrossoverSpan
from deeppool.interleaving.crossover.round_time import JobCosts
from deeppool.records.measured_ways import MeasuredWay

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
        ways=(
            MeasuredWay("crossover", (2.0, 2.2, 2.0, 2.2), 8, technique="crossover", predicted=2.0),
            MeasuredWay("one after the other", (4.0, 4.4, 4.0, 4.4), 8, predicted=4.0),
            MeasuredWay("ranks of their own", (1.0, 1.1, 1.0, 1.1), 8, predicted=2.0),
            MeasuredWay("shifted", (3.0, 3.3, 3.0, 3.3), 8),
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
    orders = ("one after the other", "ranks of their own", "shifted")
    formulas = [f"over {order}, formula" for order in orders[:2]]
    assert [trace.name for trace in figure.data] == [*formulas, *(f"over {order}" for order in orders)]
    # On two ranks of its own a job sends gradients, too.
    spans = tuple(replace(span, rank=rank) for rank in range(4) for span in SPANS)
    larger = figures.crossover_gain([replace(comparison(ratio), ranks=4, spans=spans) for ratio in (0.5, 2.0)])
    assert [trace.name for trace in larger.data][:2] == [formulas[0], "over one after the other"]
    assert traces["over one after the other"].x == (0.5, 2.0)
    assert traces["over one after the other"].y == pytest.approx((2.0, 2.0))
    assert traces["over shifted"].y == pytest.approx((1.5, 1.5))
    # On a rank of its own a job computes twice as long: the crossover takes no less, with any communication.
    assert max(traces["over ranks of their own, formula"].y) == pytest.approx(1.0)
    formula = traces["over one after the other, formula"]
    assert max(formula.y) == pytest.approx(2.0, rel=0.01)
    assert min(formula.y) >= 1.0
    with pytest.raises(InvalidValueError, match="one comparison or more"):
        figures.crossover_gain([])
    # Was numpy's "Geometric sequence cannot include zero".
    with pytest.raises(InvalidValueError, match="jobs on one rank send nothing"):
        figures.crossover_gain([comparison(0.5), comparison(0.0)])


def test_a_bar_of_few_repetitions_does_not_flatten_marks_and_lines() -> None:
    steady = figures.crossover_gain([comparison(0.5)])
    assert steady.layout.yaxis.range == (0, pytest.approx(1.05 * 2.0))
    assert "cut" not in steady.layout.title.subtitle.text
    noisy = comparison(0.5)
    ways = (replace(noisy.ways[0], seconds=(2.0, 9.0, 1.0)), replace(noisy.ways[1], seconds=(4.0, 3.0, 5.0)))
    figure = figures.crossover_gain([replace(noisy, ways=ways, repetitions=3)])
    marks = figure.data[-1]
    highest = max(*marks.y, *figure.data[0].y)
    assert marks.y[0] + marks.error_y.array[0] > 2 * highest
    assert figure.layout.yaxis.range == (0, pytest.approx(1.05 * 2 * highest))
    assert "bars: 95 % confidence, cut where longer" in figure.layout.title.subtitle.text


def test_a_comparison_prints_what_it_measured() -> None:
    text = str(comparison())
    assert "communication / computing 1.00" in text
    assert "2.1 s a round of 8 samples, predicted 2 s: 3.81 samples/s, 0.50 (0.50 … 0.50) times the" in text
    assert "times the samples per second of ranks of their own, the fastest of 3 controls, a loss" in text
    assert "0.25 (0.25 … 0.25) times ranks of their own" in text
    with pytest.raises(InvalidValueError, match="'data parallel' was not measured"):
        comparison().way("data parallel")
