"""What a paper prints across a figure: a line for each end of a range, and its words once."""

import plotly.graph_objects as go
import pytest

from deeppool.evaluation import figures


def levels(figure):
    return [line.y0 for line in figure.layout.shapes]


def test_a_range_is_two_lines_with_one_name_where_no_other_text_is():
    figure = figures.printed(go.Figure(), "crossover", "batch *: data parallel / crossover")
    assert levels(figure) == pytest.approx([1.1, 1.2])
    (note,) = figure.layout.annotations
    # The name without what stands for all batches.
    assert note.text == "paper: data parallel / crossover, 1.1 to 1.2"
    assert (note.y, note.yanchor, note.x, note.xanchor) == (1.2, "bottom", 1, "right")


def test_a_number_in_another_unit_says_by_what_it_is_multiplied():
    figure = figures.printed(go.Figure(), "wavelet", "model parallelism, 8 ranks", scale=1 / 8)
    assert levels(figure) == pytest.approx([4.7 / 8, 6.7 / 8])
    assert [note.text for note in figure.layout.annotations] == [
        "paper: model parallelism, 8 ranks, 4.7 to 6.7, times 0.125"
    ]


def test_words_and_what_is_not_printed_draw_nothing():
    figure = figures.printed(go.Figure(), "wavelet", "batch 8: two waves / one, throughput")
    assert (levels(figure), figure.layout.annotations) == ([], ())
    assert figures.printed(go.Figure(), "wavelet", "something else") == go.Figure()
