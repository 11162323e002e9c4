"""A scaling study drawn: the study's own numbers, every line told apart, nothing unlabelled."""

from dataclasses import replace

import pytest

from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.figures.formatting import shorten_text
from deeppool.figures.scaling import PANELS
from deeppool.planning.studies.scaling import scaling
from deeppool.planning.studies.scaling_record import PARALLELISMS, STRATEGIES
from deeppool.planning.studies.steps_to_accuracy import CriticalBatch
from tests.figures.records import two_layer_plan
from tests.strategies import make_graph, profile_from_times

SLOW, FAST = 10e9 / 8, 1e12 / 8
STEPS = CriticalBatch("<mine>", "made up", 1000, 64)


@pytest.fixture(scope="module")
def study():
    """Strong scaling of 4 samples ends at 4 of 8 GPUs, and weak scaling at 32 lies above the profile's 16."""
    graph = make_graph([(), (0,)], [(), (4096,)], [2**10, 2**26])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 2e-3 + 1e-5 * b])
    return scaling(profile, STEPS, gpu_counts=(1, 2, 4, 8), bandwidths=(SLOW, FAST), global_batch=4, per_gpu_batch=32)


def panel(figure, number):
    """Name → trace of the lines of one panel; the legend's keys have no place."""
    axis = "x" if number == 1 else f"x{number}"
    return {trace.name: trace for trace in figure.data if trace.xaxis == axis and trace.x[0] is not None}


def test_the_first_panel_is_speedup_over_gpus_at_the_fastest_network(study):
    lines = panel(figures.scaling(study), 1)
    assert len(lines) == len(STRATEGIES) * len(PARALLELISMS) + 1
    for strategy in STRATEGIES:
        for parallelism in PARALLELISMS:
            line, points = lines[f"{strategy}, {parallelism}"], study.line(strategy, parallelism, FAST)
            assert list(line.x) == [point.gpus for point in points]
            assert list(line.y) == [point.speedup for point in points]
    assert list(lines["strong, data-parallel"].x) == [1, 2, 4]
    assert list(lines["linear"].x) == list(lines["linear"].y) == [1, 8]


def test_speedups_below_ten_have_labels_beside_one(study):
    figure = figures.scaling(study)
    assert figure.layout.yaxis.dtick == "D2"
    assert figure.layout.yaxis.tickformat == ",.4~r"
    # Those of one GPU count may lie between 2 and 5.
    speedups = [y for trace in panel(figure, 3).values() for y in trace.y]
    assert figure.layout.yaxis3.dtick == ("D2" if max(speedups) >= 6.25 * min(speedups) else None)


def test_the_second_panel_is_the_best_per_gpu_batch(study):
    lines = panel(figures.scaling(study), 2)
    assert set(lines) == {f"batch-optimal, {parallelism}" for parallelism in PARALLELISMS}
    for parallelism in PARALLELISMS:
        points = study.line("batch-optimal", parallelism, FAST)
        assert list(lines[f"batch-optimal, {parallelism}"].y) == [point.per_gpu_batch for point in points]


def test_the_third_panel_is_speedup_over_network_speed_where_all_lines_have_a_point(study):
    figure = figures.scaling(study)
    assert "Speed-up on 4 GPUs" in [note.text for note in figure.layout.annotations]
    for strategy in STRATEGIES:
        for parallelism in PARALLELISMS:
            line = panel(figure, 3)[f"{strategy}, {parallelism}"]
            assert list(line.x) == pytest.approx([10, 1000])
            points = [study.line(strategy, parallelism, speed)[2] for speed in (SLOW, FAST)]
            assert list(line.y) == [point.speedup for point in points]
    assert list(figure.layout.xaxis3.ticktext) == ["10 Gbit/s", "1 Tbit/s"]


def test_another_speed_and_gpu_count_can_be_asked_for(study):
    figure = figures.scaling(study, bandwidth=SLOW, gpus=8)
    weak = study.line("weak", "data-parallel", SLOW)
    assert list(panel(figure, 1)["weak, data-parallel"].y) == [point.speedup for point in weak]
    assert "strong, data-parallel" not in panel(figure, 3)
    assert [note.text for note in figure.layout.annotations] == [
        "Speed-up at 10 Gbit/s",
        "Batch-optimal at 10 Gbit/s",
        "Speed-up on 8 GPUs",
    ]


def test_points_that_lean_on_extrapolated_times_have_open_marks(study):
    figure = figures.scaling(study)
    for name, line in panel(figure, 1).items():
        if name != "linear":
            points = study.line(*name.split(", "), FAST)
            assert [symbol == "circle-open" for symbol in line.marker.symbol] == [x.extrapolated for x in points]
    assert set(panel(figure, 1)["weak, data-parallel"].marker.symbol) == {"circle-open"}
    assert "layer times extrapolated" in [trace.name for trace in figure.data if trace.showlegend is not False]


def test_the_legend_names_every_colour_dash_and_mark_once(study):
    shown = [trace.name for trace in figures.scaling(study).data if trace.showlegend is not False]
    assert shown == [*STRATEGIES, *PARALLELISMS, "layer times extrapolated", "linear"]


def test_the_legend_of_one_panel_names_nothing_that_is_not_in_it(study):
    points = tuple(replace(point, extrapolated=point.strategy == "weak") for point in study.points)
    batch = figures.scaling(replace(study, points=points), panels=["batch"])
    shown = [trace.name for trace in batch.data if trace.showlegend is not False]
    assert shown == ["batch-optimal", *PARALLELISMS]


def test_what_is_too_long_for_the_subtitle_ends_after_a_word(study):
    far = replace(
        study,
        steps_name="VGG-11 on ImageNet to validation error 0.35",
        steps_source="Shallue et al., JMLR 20(112), 2019: read to about 3 % from a figure",
    )
    subtitle = figures.scaling(far).layout.title.subtitle.text.replace("<br>", " ")
    assert "steps of VGG-11 on ImageNet to validation error 0.35 (Shallue et al., JMLR 20(112), 2019: …)" in subtitle
    assert shorten_text("a" * 60, 21) == "a" * 10 + "…" + "a" * 10


def test_colours_are_strategies_and_dashes_data_parallelism_in_lines_and_legend_alike(study):
    figure = figures.scaling(study)
    keys = {trace.name: trace.line for trace in figure.data if trace.x[0] is None}
    lines = {name: trace for name, trace in panel(figure, 1).items() if name != "linear"}
    for name, trace in lines.items():
        strategy, parallelism = name.split(", ")
        assert trace.line.color == trace.marker.color == keys[strategy].color
        assert trace.line.dash == keys[parallelism].dash
    looks = {(trace.line.color, trace.line.dash) for trace in lines.values()}
    assert len(looks) == len(STRATEGIES) * len(PARALLELISMS)
    assert keys["data-parallel"].dash == "dash"


def test_every_axis_has_a_title_and_the_subtitle_says_where_numbers_come_from(study):
    figure = figures.scaling(study)
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    assert all(axis.title.text and axis.type == "log" for axis in axes)
    subtitle = figure.layout.title.subtitle.text
    assert "<b>predicted</b> from estimated layer times (drawn)" in subtitle
    assert "steps of &lt;mine&gt; (made up)" in subtitle.replace("<br>", " ")


def test_the_title_counts_gpus(study):
    assert figures.scaling(study).layout.title.text.endswith(" to accuracy on 1 to 8 GPUs")
    alone = replace(study, gpu_counts=(1,), points=tuple(point for point in study.points if point.gpus == 1))
    assert figures.scaling(alone).layout.title.text.endswith(" to accuracy on 1 GPU")


def test_the_hover_text_reports_batch_steps_and_time(study):
    point = study.line("weak", "data-parallel", FAST)[-1]
    texts = panel(figures.scaling(study), 1)["weak, data-parallel"].customdata[-1]
    assert f"8 GPUs at 1 Tbit/s, batch {point.global_batch}, 32 per GPU" in texts
    assert any(f"{point.steps} steps of" in text and "extrapolated" in text for text in texts)


@pytest.mark.parametrize(
    ("wrong", "phrase"), [({"bandwidth": 1.0}, "bandwidth must be one of"), ({"gpus": 3}, "gpus must be one of")]
)
def test_a_speed_or_count_that_the_study_lacks_is_refused(study, wrong, phrase):
    with pytest.raises(InvalidValueError, match=phrase):
        figures.scaling(study, **wrong)


def test_what_is_no_study_is_refused():
    with pytest.raises(InvalidValueError, match="study must be a ScalingStudy, got a Plan"):
        figures.scaling(two_layer_plan())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_panel_by_itself_draws_what_it_draws_among_three(study, number):
    alone = figures.scaling(study, panels=[PANELS[number]])
    among = panel(figures.scaling(study), number + 1)
    assert {name: (line.x, line.y) for name, line in panel(alone, 1).items()} == {
        name: (line.x, line.y) for name, line in among.items()
    }


@pytest.mark.parametrize(
    ("panels", "told"),
    [
        ((), "panels must be some of speed-up, batch, network, got none"),
        (("speed",), r"panels\[0\] must be one of speed-up, batch, network, got 'speed'"),
    ],
)
def test_a_panel_that_there_is_not_is_refused(study, panels, told):
    with pytest.raises(InvalidValueError, match=told):
        figures.scaling(study, panels=panels)
