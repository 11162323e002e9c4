"""Every kind of record has a figure that answers a question about it, or a reason why it has none."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.base.serialization import to_json
from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures as evaluation_figures
from deeppool.figures import theme
from deeppool.figures.network import SIZES
from deeppool.figures.record_figure import WITHOUT_FIGURE
from deeppool.planning.studies.steps_to_accuracy import StepsTable
from deeppool.profiling.comparison import LayerTimeChange
from deeppool.records.files import KINDS

RECORDED = Path(__file__).parents[1] / "records/recorded"


def recorded(kind):
    return dp.load(RECORDED / f"{kind}.json")


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def bars(figure):
    """Label → length, from the axis' own labels."""
    labels = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    return {
        labels[row]: length
        for bar in figure.data
        if bar.type == "bar"
        for row, length in zip(bar.y, bar.x, strict=True)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_figure_in_both_themes_or_a_reason(kind) -> None:
    record = recorded(kind)
    if kind in WITHOUT_FIGURE:
        with pytest.raises(InvalidValueError, match=f"there is no figure of kind '{kind}': it "):
            figures.of(record)
        return
    drawn, dark = figures.of(record), figures.of(record, dark=True)
    assert drawn.layout.title.text
    assert any(len(trace.to_plotly_json()) > 3 for trace in drawn.data)
    assert dark.layout.template.layout.paper_bgcolor == theme.paper(dark=True) != theme.paper()
    assert drawn.to_plotly_json()["data"] != [] and to_json(record)["format"] == f"deeppool/{kind}"


def test_one_repetition_is_in_the_singular() -> None:
    assert " 1 repetition by turns" in figures.of(recorded("measured-transfers")).layout.title.subtitle.text


def test_only_kinds_of_records_have_reasons() -> None:
    assert set(WITHOUT_FIGURE) < set(KINDS)


def test_changes_of_plans_are_percent_of_the_iteration_and_name_the_counts() -> None:
    found = recorded("diff")
    drawn = bars(figures.changes(found))
    assert drawn["iteration time"] == pytest.approx(
        100 * (found.iteration_time.after / found.iteration_time.before - 1)
    )
    (fc,) = [layer for layer in found.layers if layer.name == "fc"]
    assert drawn["fc (2 → 1 GPUs)"] == pytest.approx(
        100 * (fc.after.time - fc.before.time) / found.iteration_time.before
    )


def test_what_more_than_doubled_is_a_factor_and_what_is_over_another_value_is_not() -> None:
    found = recorded("diff")
    longer = replace(found.iteration_time, before=1e-3, after=3e-3, change=2e-3)
    layer = replace(found.layers[0], name="conv", change=2.5e-3)
    (bar,) = figures.changes(replace(found, iteration_time=longer, layers=(layer,))).data
    assert (bar.text[0], bar.text[-1]) == ("3 times", "+250.0 %")


def test_a_change_within_the_noise_is_pale_and_the_noise_is_drawn() -> None:
    found = recorded("profile-comparison")
    slower = LayerTimeChange(("conv1", "conv2"), 2, 1e-3, 1.5e-3, 0.1)
    drawn = figures.changes(replace(found, changes=(slower,)))
    assert bars(drawn)["conv1 and 1 alike, batch 2"] == pytest.approx(50)
    (noise,) = [trace for trace in drawn.data if trace.type == "scatter"]
    assert list(noise.error_x.array) == [pytest.approx(10)]
    runs = recorded("run-comparison")
    (mean,) = [figure for figure in runs.figures if figure.name == "iteration time, mean"]
    later = replace(mean, after=mean.before + mean.noise / 2)
    drawn = figures.changes(
        replace(runs, figures=(later, replace(mean, name="far", after=mean.before + 2 * mean.noise)))
    )
    assert list(drawn.data[0].marker.color) == [theme.soft(), theme.BLUE]


def test_of_many_changes_the_largest_are_drawn_and_the_rest_counted() -> None:
    found = recorded("profile-comparison")
    many = tuple(LayerTimeChange((f"l{n}",), 1, 1.0, 1.0 + n / 100, 0.0) for n in range(1, 101))
    drawn = figures.changes(replace(found, changes=many))
    assert "l100, batch 1" in bars(drawn) and "l1, batch 1" not in bars(drawn)
    assert "the 40 largest of 103 changes" in drawn.layout.title.subtitle.text


def test_the_error_of_a_simulation_is_against_what_was_measured() -> None:
    found = recorded("fidelity")
    drawn = bars(figures.changes(found))
    for quantity in found.quantities:
        assert drawn[quantity.name.rstrip(", ")] == pytest.approx(100 * (quantity.simulated / quantity.measured - 1))


def test_hover_texts_of_changes_have_units_and_no_exponents() -> None:
    found = recorded("diff")
    small = replace(found.iteration_time, before=1.2e-5, after=3.4e-6)
    (bar,) = figures.changes(replace(found, iteration_time=small)).data
    assert "12 us → 3.4 us" in str(bar.hovertext)


def test_templates_of_hover_texts_have_no_exponents() -> None:
    """d3 writes an exponent by ``g`` and ``e``, by ``r`` none."""
    for package in (figures, evaluation_figures):
        for path in Path(package.__file__).parent.glob("*.py"):
            assert not re.findall(r"%\{[^{}]*:[^{}]*[ge]\}", path.read_text().replace("{{", "{")), path


def test_steps_are_those_of_the_record_at_every_batch() -> None:
    critical = traces(figures.steps(recorded("critical-batch")))["steps"]
    assert all(y == math.ceil(10_000 * (1 + 2048 / x)) for x, y in zip(critical.x, critical.y, strict=True))
    assert critical.x[0] == 32 and critical.x[-1] == 2048 * 64
    fixed = traces(figures.steps(recorded("fixed-samples")))["steps"]
    assert (fixed.x[-1], fixed.y[-1]) == (8192, math.ceil(1_000_000 / 8192))
    table = traces(figures.steps(recorded("steps-table")))["measured"]
    assert list(zip(table.x, table.y, strict=True)) == [(64, 40000), (256, 10000), (4096, 5000)]


def test_steps_at_batches_between_two_powers_of_ten_have_ticks() -> None:
    layout = figures.steps(StepsTable("mine", "measured", ((128, 4000), (960, 1500)))).layout
    for axis, shown in ((layout.xaxis, [128, 960]), (layout.yaxis, [4000 * 128 / 960, 4000])):
        assert {"dtick": axis.dtick, "tickformat": axis.tickformat} == theme.log_ticks(shown)


def test_an_all_reduce_over_its_bytes_is_a_ring_of_the_slowest_link() -> None:
    cluster = recorded("cluster")
    drawn = traces(figures.network(cluster))
    assert set(drawn) == {"2 GPUs, computed", "4 GPUs, computed", "8 GPUs, computed"}
    link = cluster.between
    # 2 (n - 1) steps, each of an n-th of the bytes.
    assert list(drawn["8 GPUs, computed"].y) == [
        pytest.approx(14 * (link.latency + size / 8 / link.bandwidth)) for size in SIZES
    ]


def test_the_roofline_bends_where_memory_no_longer_limits() -> None:
    sheet = recorded("gpu")
    line = traces(figures.roofline(sheet))["fp32, data sheet"]
    bend = sheet.fp32 / sheet.bandwidth
    for x, y in zip(line.x, line.y, strict=True):
        assert 1e12 * y == pytest.approx(x * sheet.bandwidth if x < bend else sheet.fp32)


def test_a_kernel_costs_a_launch_its_bytes_and_its_operations() -> None:
    found = recorded("calibration")
    drawn = traces(figures.kernel_costs(found))
    launches = dict(zip(drawn["launch"].y, drawn["launch"].x, strict=True))
    assert launches == {cost.family: pytest.approx(1e6 * cost.launch) for cost in found.costs if cost.launch}
    (relu,) = [cost for cost in found.costs if cost.family == "relu"]
    megabytes = dict(zip(drawn["a megabyte"].y, drawn["a megabyte"].x, strict=True))
    assert megabytes["relu"] == pytest.approx(1e12 * relu.per_byte)


def test_jobs_arrive_and_ask_for_gpus() -> None:
    trace = recorded("workload-trace")
    (front, back) = trace.jobs
    later = replace(front, name="later", arrival=3.0, gpus=4)
    drawn = figures.workload(replace(trace, jobs=(later, front, back)))
    jobs = traces(drawn)["foreground"]
    assert list(zip(jobs.x, jobs.y, strict=True)) == [(0.0, 2), (3.0, 4)]
    assert list(traces(drawn)["foreground, so far"].y) == [1, 2]
    assert drawn.layout.xaxis2.title.text == "arrival (s)"


def test_the_progress_of_a_job_is_updates_of_its_steps() -> None:
    drawn = figures.job_progress(recorded("cluster-status"))
    assert bars(drawn) == {"job 3: vgg16": pytest.approx(100 * 12 / 500)}
    assert drawn.data[0].text == ("running, GPU 0–1",)
    assert "1 of 2 GPUs in use" in drawn.layout.title.subtitle.text


def test_trials_are_ordered_by_their_loss_and_the_best_is_marked() -> None:
    found = recorded("trials")
    (bar,) = figures.trials(found).data
    assert list(bar.x) == [1.25, 1.625, 0.0]
    assert list(bar.text) == ["1.25", "1.625", "its loss is nan after step 3"]
    assert [colour == theme.GREEN for colour in bar.marker.color] == [True, False, False]


def test_a_group_that_crosses_over_takes_its_longer_resource() -> None:
    found = recorded("pairing")
    drawn = traces(figures.pairing(found))
    (group,) = found.groups
    assert list(drawn["computing"].x) == [pytest.approx(1e3 * job.compute) for job in group]
    assert list(drawn["communication"].x) == [pytest.approx(1e3 * job.communication) for job in group]
    # At least as long as what all compute, and as one job alone.
    least = 1e3 * max(sum(job.compute for job in group), *(job.compute + job.communication for job in group))
    assert drawn["round of the group"].x[0] == pytest.approx(least)


def test_each_gpu_of_a_collocated_plan_has_its_harvest() -> None:
    found = recorded("collocated-plan")
    drawn = traces(figures.collocated_gpus(found))
    assert list(drawn["background, of alone"].y) == [pytest.approx(100 * gpu.harvest) for gpu in found.gpus]
    assert list(drawn["slowdown of the foreground"].y) == [pytest.approx(100 * gpu.slowdown) for gpu in found.gpus]


def test_telemetry_is_drawn_over_time() -> None:
    found = recorded("telemetry")
    drawn = traces(figures.telemetry(found))
    assert list(drawn["core 0"].x) == [0.5, 1.0, 1.5]
    assert list(drawn["core 0"].y) == [25, 75, 50]
    assert list(drawn["GPU 0, memory"].y) == [10 / 2**30, 30 / 2**30, None]


def test_a_night_shows_what_failed_and_what_moved() -> None:
    found = recorded("night")
    failed = replace(found.outcomes[0], name="fig2", state="failed", problem="a cell raised", seconds=30.0, checks=())
    drawn = figures.of(replace(found, outcomes=(*found.outcomes, failed)))
    assert bars(drawn) == {"fig1": pytest.approx(60), "fig2": pytest.approx(30)}
    assert traces(drawn)["failed"].marker.color == theme.VERMILLION
    assert traces(drawn)["failed"].text == ("a cell raised",)
    verdict = figures.of(recorded("verdict"))
    assert bars(verdict) == {"fig1: speed-up": pytest.approx(-100 * 2 / 3)}
    (noise,) = [trace for trace in verdict.data if trace.type == "scatter"]
    assert noise.error_x.array[0] == pytest.approx(100 * 0.16406664703440077 / 1.5)


def test_a_number_is_compared_with_the_middle_of_what_the_paper_prints() -> None:
    found = recorded("evaluation")
    drawn = figures.of(found)
    # 1.5 where the paper has 1.2 to 2.3.
    assert bars(drawn) == {"speed-up": pytest.approx(100 * (1.5 / 1.75 - 1))}
    (span,) = [trace for trace in drawn.data if trace.type == "scatter"]
    assert (span.name, span.error_x.array[0]) == ("the paper's range", pytest.approx(100 * 0.55 / 1.75))
    (number,) = found.numbers
    alone = figures.of(replace(found, numbers=(replace(number, paper=None),)))
    assert "0 of 1 numbers have the paper's beside them" in alone.layout.title.subtitle.text
