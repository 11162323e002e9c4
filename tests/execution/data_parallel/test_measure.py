"""Methods of sending gradients, measured on real ranks; and what the record derives from its figures."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import deeppool as dp
from deeppool import figures
from deeppool.base.timeline import Timeline
from deeppool.collectives.transfer_methods import CARAMEL, DDP, DEAR, FEWER, SERVERS, TUNED_DDP
from deeppool.errors import InvalidValueError
from deeppool.execution.data_parallel import measure
from deeppool.execution.data_parallel.compared_methods import DataParallel, Trainee
from deeppool.execution.data_parallel.measure import METHODS
from deeppool.records.measured_transfers import MeasuredMethod, MeasuredTransfers
from deeppool.records.transfer_plan import PartTimes, TransferPlan
from tests.interleaving.crossover.test_scheduler import make_job

PLAN = TransferPlan((PartTimes("a", 1.0, 2.0, (0, 1)),), (), None, None)


def measured(**changes) -> MeasuredTransfers:
    methods = (
        MeasuredMethod(DDP, (8.0, 8.2, 8.4, 8.2), 8, transfers_alone=3.0, bucket=25.0 * 2**20),
        MeasuredMethod("<PS>", (20.0, 21.0, 22.0, 21.0), 8, predicted=3.0, transfers_alone=10.0, plan=PLAN),
        MeasuredMethod(
            CARAMEL,
            (6.0, 6.2, 6.4, 6.2),
            8,
            Timeline("t", "measured", 1, ()),
            technique="ordered transfers",
            predicted=3.0,
            transfers_alone=4.0,
            plan=PLAN,
        ),
    )
    record = MeasuredTransfers(
        model="m",
        ranks=2,
        global_batch=8,
        device_name="by hand",
        cluster=dp.Cluster(2),
        compute=(5.0, 4.8, 5.2),
        core_time=0.5,
        ways=methods,
        repetitions=2,
        date="2026-11-25",
        versions={},
    )
    return replace(record, **changes)


def test_hidden_shares_bounds_and_gains_follow_from_the_figures() -> None:
    record = measured()
    assert record.compute_time == 5.0
    # max(5 + 0.5, 3): computing and what cores do for the transfers take longer than these.
    assert record.bound == 5.5
    assert replace(record, core_time=0.0, compute=(2.0,)).bound == 3.0
    # 8.2 - 5 = 3.2 of 3 wait: nothing is hidden. 6.2 - 5 = 1.2 of 4 wait.
    assert record.hidden_share(DDP) == 0.0
    assert record.hidden_share(CARAMEL) == pytest.approx(0.7)
    ratio, low, high = record.gain(CARAMEL, DDP)
    # In one repetition 8.1 / 6.1, in the other 8.3 / 6.3: mean and error of two logarithms with Student's t.
    found = [math.log(8.1 / 6.1), math.log(8.3 / 6.3)]
    assert math.log(ratio) == pytest.approx(sum(found) / 2)
    assert low is not None and high is not None
    assert math.log(high / ratio) == pytest.approx(12.706205 * abs(found[0] - found[1]) / 2)
    lead = record.lead(CARAMEL)
    assert lead is not None and (lead.over, lead.controls, lead.low) == (DDP, 2, low)
    # One rank alone hides nothing, and its M is no bound.
    fewer = MeasuredMethod("one", (9.0, 9.0, 9.0, 9.0), 8, transfers_alone=None)
    record = replace(record, ways=(fewer, *record.ways), core_time=0.0, compute=(2.0,))
    assert (record.bound, record.hidden_share("one")) == (3.0, 0.0)
    with pytest.raises(InvalidValueError, match="'DeAR' was not measured \\(there are one, DDP, <PS>, Caramel\\)"):
        record.way("DeAR")


def test_a_record_prints_a_line_per_method_and_is_drawn() -> None:
    record = measured()
    lines = str(record).splitlines()
    assert "m, batch 8 on 2 ranks of by hand: 5 s of computing, 4 s of transfers by Caramel; bound 5.5 s" in lines[0]
    assert lines[1].endswith("the fastest control; 0% of 3 s of transfers hidden, buckets of 25.0 MiB")
    assert "predicted 3 s: 1.29 samples/s, 1.32 (1.26 … 1.46) times the samples per second of DDP" in lines[3]
    figure = figures.of(record)
    computing, waiting, alone, predicted = figure.data
    assert list(computing.y) == ["DDP", "&lt;PS&gt;", "Caramel"]
    assert [a + b for a, b in zip(computing.x, waiting.x, strict=True)] == pytest.approx([8.2, 21.0, 6.2])
    assert waiting.error_x.array == pytest.approx((0.2, 1.0, 0.2))
    assert alone.x == (3.0, 10.0, 4.0)
    assert predicted.x == (None, 3.0, 3.0)
    subtitle = figure.layout.title.subtitle.text
    assert subtitle.startswith("<b>measured</b> on by hand")
    assert "one mark is <b>predicted</b>" in subtitle
    with pytest.raises(InvalidValueError, match="must be a TransferComparison or a MeasuredTransfers, got 'record'"):
        figures.transfers("record")


@pytest.mark.slow
@pytest.mark.processes
def test_all_methods_are_measured_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The largest is enough for a bandwidth to show.
    monkeypatch.setattr(measure, "SIZES", (2**8, 2**16, 2**22))
    so_far: list[MeasuredTransfers] = []
    found = dp.measure_transfers(
        make_job(),
        global_batch=8,
        ranks=2,
        repetitions=2,
        iterations=2,
        buckets=[400.0],
        network_seconds=0.3,
        on_record=so_far.append,
    )
    assert [each.name for each in found.ways] == list(METHODS)
    assert [len(each.compute) for each in so_far] == [2, 4]
    assert found.compute_time > 0
    assert found.cluster.measured is not None
    assert found.cluster.measured.schedules
    for each in found.ways:
        assert len(each.seconds) == 4
        assert min(each.seconds) > 0
        assert (each.transfers_alone is None) == (each.name == FEWER)
        if each.name in (DDP, TUNED_DDP, FEWER):
            assert each.plan is None
            continue
        assert each.plan is not None
        assert each.timeline is not None
        assert {span.kind for span in each.timeline.spans} == {"forward", "backward", "sync"}
        names = {name for transfer in each.plan.transfers for name in transfer.gradients}
        assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert found.way(DDP).bucket == 25 * 2**20
    assert {found.way(name).bucket for name in (TUNED_DDP, DEAR)} <= {400.0, 25.0 * 2**20}
    assert found.way(SERVERS).bucket is None
    assert (found.way(FEWER).bucket, found.way(FEWER).note) == (None, "on 1 of 2 ranks")
    assert dp.load(dp.save(found, tmp_path / "measured.json")) == found


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="ranks must be at least 2, got 1"):
        dp.measure_transfers(make_job(), global_batch=8, ranks=1)
    with pytest.raises(InvalidValueError, match="repetitions must be at least 1, got 0"):
        dp.measure_transfers(make_job(), global_batch=8, repetitions=0)
    with pytest.raises(InvalidValueError, match="got 'Horovod'"):
        dp.measure_transfers(make_job(), global_batch=8, methods=["Horovod"])
    with pytest.raises(InvalidValueError, match="one or more different ones, got \\['DDP', 'DDP'\\]"):
        dp.measure_transfers(make_job(), global_batch=8, methods=[DDP, DDP])
    with pytest.raises(InvalidValueError, match="jobs that accumulate or clip gradients cannot be compared"):
        dp.measure_transfers(replace(make_job(), clip_norm=1.0), global_batch=8)
    with pytest.raises(InvalidValueError, match=r"does not run on device 'emulated' \(use device cpu or cuda"):
        dp.measure_transfers(make_job(), global_batch=8, device="emulated")


def test_a_training_that_sends_nothing_is_sgd_of_one_process() -> None:
    job = make_job()
    trainee = Trainee(job, make_job().model)
    expected = make_job().model
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
    inputs, targets = torch.randn(4, 8), torch.arange(4)
    for _ in range(2):
        trainee.step(inputs, targets)
        torch.nn.functional.cross_entropy(expected(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(trainee.model.state_dict(), expected.state_dict())
    assert issubclass(DataParallel, Trainee)
