"""The study of 16 networks compares what its assumptions say; its table and figure show the comparisons."""

from dataclasses import replace

import pytest

from deeppool.errors import InvalidValueError
from deeppool.evaluation import figures
from deeppool.evaluation.experiments.transfer_study import NETWORKS, study_table, transfer_study
from deeppool.figures import theme
from deeppool.graph.models.libraries import torchvision_names
from deeppool.units import format_seconds


@pytest.fixture(scope="module")
def compared():
    return list(transfer_study(["alexnet"], gbits=[25, 100]))


def test_there_are_16_networks_of_torchvision() -> None:
    assert len(NETWORKS) == 16
    assert set(NETWORKS) <= set(torchvision_names())


@pytest.mark.slow
def test_clusters_batches_and_servers_are_those_of_the_assumptions(compared) -> None:
    assert [one.cluster.between.bandwidth for one in compared] == [25e9 / 8, 100e9 / 8]
    for one in compared:
        assert (one.cluster.gpus, one.cluster.gpus_per_node, one.global_batch, one.servers) == (16, 1, 512, 8)
        assert one.cluster.between.latency == 50e-6
        assert one.provenance == "estimated"
        # 61,100,840 parameters of 4 bytes.
        assert sum(transfer.size for transfer in one.plan("DDP").transfers) == 4 * 61_100_840
        # The first linear layer is on one server, to which 15 others send 151 MB.
        assert one.plan("parameter server").transfer_time >= 2 * 15 * 151e6 / one.cluster.between.bandwidth
    # Computing does not depend on the network.
    assert compared[0].compute_time == compared[1].compute_time


@pytest.mark.slow
def test_the_table_has_a_row_per_network_in_each_part(compared) -> None:
    text = study_table(compared[:1])
    rows = [line.split() for line in text.splitlines() if line.startswith(" alexnet")]
    assert len(rows) == 3
    plan = compared[0].plan("Caramel")
    assert " ".join(rows[0][-2:]) == format_seconds(plan.iteration_time)
    assert rows[1][-1] == f"{plan.utilisation:.0%}"
    assert " ".join(rows[2][-2:]) == format_seconds(plan.transfer_time)
    assert "communication, 25 Gbit/s" in text


@pytest.mark.slow
def test_no_table_breaks_a_networks_name(compared) -> None:
    lines = study_table([replace(compared[0], model=name) for name in NETWORKS]).splitlines()
    assert [sum(line.startswith(f" {name} ") for line in lines) for name in NETWORKS] == [3] * len(NETWORKS)


def test_the_figure_has_a_mark_per_network_and_method(compared) -> None:
    figure = figures.transfer_gains(compared)
    assert len(figure.data) == 6
    for trace in figure.data:
        assert list(trace.y) == [one.speedup(trace.name) for one in compared]
        assert list(trace.text) == ["alexnet, 25 Gbit/s", "alexnet, 100 Gbit/s"]
    assert figure.layout.title.subtitle.text.startswith("<b>predicted</b> from estimated layer times")
    drawn = [gain for trace in figure.data for gain in trace.y]
    for axis, values in ((figure.layout.xaxis, [*figure.data[0].x]), (figure.layout.yaxis, drawn)):
        assert axis.type == "log" and axis.title.text.endswith("(log)")
        assert (axis.dtick, axis.tickformat) == (
            theme.log_ticks(values).get("dtick"),
            theme.log_ticks(values).get("tickformat"),
        )
    with pytest.raises(InvalidValueError, match="transfer_gains got nothing to draw"):
        figures.transfer_gains([])
