"""Techniques on one workload: measured on real ranks, and what the record and the verdicts derive from figures."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.advice.record import Advice, Finding
from deeppool.advice.verdict import TechniqueVerdict, verdicts
from deeppool.base import serialization
from deeppool.collectives.buckets import Buckets
from deeppool.collectives.transfer_methods import FEWER
from deeppool.errors import InvalidValueError
from deeppool.execution.comparison.turns import MeasuredRounds, joined_ranks
from deeppool.execution.ranks import PLAN
from deeppool.records.measured_ways import MeasuredWay, MeasuredWays
from deeppool.runs.technique_comparison import compare, names
from deeppool.runs.technique_comparison import rank as rank_module
from deeppool.runs.technique_comparison.pipeline import splits
from deeppool.runs.technique_comparison.rank import TechniqueRank
from deeppool.runs.technique_comparison.timeline import timeline_of
from deeppool.training.training_job import save_job
from tests.figures.records import two_layer_plan
from tests.interleaving.crossover.test_scheduler import make_job
from tests.records.test_recorded_files import RECORDED


def measured(**changes) -> MeasuredWays:
    ways = (
        MeasuredWay("DDP, best bucket", (1.0, 1.0, 1.1, 1.1), 8),
        MeasuredWay("<fast>", (0.5, 0.5, 0.55, 0.55), 8, technique="ordered transfers"),
        MeasuredWay("slow", (2.0, 2.0, 2.1, 2.1), 8, technique="partial all-reduces"),
        MeasuredWay("twice", (1.2, 1.2, 1.3, 1.3), 16, control_of="two waves"),
        MeasuredWay("two", (0.9, 0.9, 1.0, 1.0), 8, technique="two waves"),
    )
    record = MeasuredWays(
        model="m", global_batch=8, ranks=2, device_name="by hand", ways=ways, repetitions=2, late=0.0,
        date="2026-11-25", versions={},
    )  # fmt: skip
    return replace(record, **changes)


def predicted() -> Advice:
    gains = {"ordered transfers": 1.2, "crossover": 1.1, "two waves": 1.3, "partial all-reduces": None}
    findings = tuple(Finding(name, "unknown", gain, "some reason", "some command") for name, gain in gains.items())
    return replace(dp.load(RECORDED / "advice.json"), findings=findings)


def test_a_plan_is_trained_in_its_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(two_layer_plan(), overlap_sync=True, buckets=Buckets(alone=7))
    serialization.write(plan, tmp_path / PLAN)
    asked = {}
    rank = object.__new__(TechniqueRank)
    vars(rank).update(
        folder=tmp_path,
        place=None,
        _job=None,
        _batch=plan.global_batch,
        _trainer=lambda captured, stages, **options: asked.update(options),
        _batches=lambda: iter(()),
    )
    monkeypatch.setattr(rank_module, "user_task", lambda *_: SimpleNamespace(captured=None))
    rank._planned()
    assert asked == {"overlap_sync": True, "buckets": plan.buckets}


def test_gains_are_in_samples_per_second_and_a_way_has_the_faster_one_of_two_rivals() -> None:
    record = measured()
    assert record.gain("<fast>", "DDP, best bucket") == pytest.approx((2.0, 2.0, 2.0))
    ratio, low, high = record.gain("twice", "DDP, best bucket")
    # 16 samples in 1.2 s and in 1.3 s, 8 in 1.0 s and in 1.1 s: two logarithms, one degree of freedom.
    found = [math.log(2 * 1.0 / 1.2), math.log(2 * 1.1 / 1.3)]
    assert math.log(ratio) == pytest.approx(sum(found) / 2)
    assert low is not None and high is not None
    expected = 12.706205 * abs(found[0] - found[1]) / 2
    assert (math.log(ratio / low), math.log(high / ratio)) == pytest.approx((expected, expected))
    assert replace(record, repetitions=1).gain("slow", "twice")[1:] == (None, None)
    with pytest.raises(InvalidValueError, match="'DeAR' was not measured"):
        record.way("DeAR")
    assert "slow" in str(record) and "2.05 s a round of 8 samples" in str(record)


def test_a_verdict_says_what_was_measured_and_what_is_unknown() -> None:
    advice = predicted()
    found = {one.technique: one for one in verdicts(advice, measured())}
    assert set(found) == {finding.technique for finding in advice.findings}
    assert found["ordered transfers"].verdict == "yes"
    assert (found["partial all-reduces"].verdict, found["partial all-reduces"].predicted) == ("no", None)
    assert "a loss" in found["partial all-reduces"].why
    # 8.4 samples/s are more than the 7.6 of DDP, and fewer than the 12.8 of twice the batch.
    assert found["two waves"].verdict == "no"
    assert "of twice" in found["two waves"].why
    assert found["crossover"].verdict == "unknown"
    assert found["crossover"].why.startswith("not measured here")
    assert str(found["crossover"]) == "crossover            unknown  predicted 1.10, not measured here; some reason"
    assert str(found["ordered transfers"]).endswith(
        "predicted 1.20, measured 2.00 (2.00 … 2.00) times the samples per second of DDP, best bucket; some reason"
    )
    once = {one.technique: one.verdict for one in verdicts(advice, measured(repetitions=1))}
    assert once["ordered transfers"] == "unknown"
    assert {one.verdict for one in verdicts(advice)} == {"unknown"}


def test_a_technique_has_to_beat_every_control_and_needs_those_that_it_names() -> None:
    record = measured()
    alone = MeasuredWay("DDP on fewer ranks", (0.4, 0.4, 0.44, 0.44), 8)

    def judged(*ways: MeasuredWay) -> TechniqueVerdict:
        found = verdicts(predicted(), replace(record, ways=ways))
        return next(one for one in found if one.technique == "ordered transfers")

    found = judged(record.ways[0], alone, record.ways[1])
    assert found.verdict == "no"
    assert "times the samples per second of DDP on fewer ranks, the fastest of 2 controls, a loss" in found.why
    needs = replace(record.ways[1], controls=("DDP, best bucket", "DDP on fewer ranks"))
    found = judged(record.ways[0], needs)
    assert (found.verdict, found.low) == ("unknown", pytest.approx(2.0))
    assert "; not measured beside it: DDP on fewer ranks" in found.why
    assert judged(needs).measured is None
    # A loss is one, whatever else was not measured.
    assert judged(record.ways[0], replace(needs, seconds=(2.0, 2.0, 2.2, 2.2))).verdict == "no"


def test_what_is_within_its_interval_shows_no_difference() -> None:
    noisy = MeasuredWay("<fast>", (0.5, 0.5, 1.1, 1.1), 8, technique="ordered transfers")
    record = measured()
    record = replace(record, ways=(record.ways[0], noisy))
    found = next(one for one in verdicts(predicted(), record) if one.technique == "ordered transfers")
    assert found.measured is not None and found.low is not None
    assert found.measured > 1 > found.low
    assert found.verdict == "unknown"
    assert "no difference shown" in found.why


def test_collocation_is_judged_by_the_sum_of_both_jobs_throughputs() -> None:
    run = dp.load(RECORDED / "run.json")
    advice = replace(predicted(), findings=(Finding("collocation", "unknown", 1.1, "some reason", "some command"),))

    def judged(slowdown: float, harvest: float, margin: float | None, record: MeasuredWays | None = None):
        foreground = replace(run.foreground, slowdown=slowdown, slowdown_margin=margin)
        background = replace(run.background, harvest=harvest, harvest_margin=0.03)
        return verdicts(advice, record, replace(run, foreground=foreground, background=background))[0]

    # Four fifths of the foreground and half of the background.
    found = judged(0.25, 0.5, 0.0625)
    assert found.verdict == "yes"
    assert found.measured == pytest.approx(0.8 + 0.5)
    assert found.high == pytest.approx(1.3 + (0.04**2 + 0.03**2) ** 0.5)
    assert "0.80 of the plan alone" in found.why
    # A plan that is half as fast as the baseline.
    slow = MeasuredWay("plan", (2.0, 2.0, 2.2, 2.2), 8, technique="burst parallelism")
    found = judged(0.25, 0.5, 0.0625, replace(measured(), ways=(measured().ways[0], slow)))
    assert found.verdict == "no"
    assert found.measured == pytest.approx(0.4 + 0.5)
    assert "of DDP, best bucket" in found.why
    # DDP on one of two ranks leaves the other one to the second job: 1 of the fastest control and a half.
    ways = (
        MeasuredWay("DDP", (1.0, 1.0, 1.1, 1.1), 8),
        MeasuredWay("one", (0.9, 0.9, 0.99, 0.99), 8, idle_ranks=1),
        MeasuredWay("plan", (0.75, 0.75, 0.825, 0.825), 8, technique="burst parallelism"),
    )
    found = judged(0.0, 0.2, 0.01, replace(measured(), ways=ways))
    assert (found.verdict, found.measured) == ("no", pytest.approx(1.2 + 0.2))
    assert "jobs' worth of training, beside 1.50 by one with the second job on the others, a loss: the" in found.why
    assert judged(0.0, 0.5, 0.01, replace(measured(), ways=ways)).verdict == "yes"
    assert "beside 1.00 by jobs that take turns" in judged(0.25, 0.5, 0.0625).why
    assert judged(0.25, 0.21, 0.05).verdict == "unknown"
    assert judged(0.25, 0.5, None).verdict == "unknown"
    assert verdicts(advice, measured())[0].measured is None


def test_gains_are_drawn_beside_predictions() -> None:
    record = measured()
    advice = predicted()
    figure = figures.ways(record, advice)
    bars, marks = figure.data
    assert list(bars.y) == ["DDP, best bucket", "&lt;fast&gt;", "slow", "twice", "two"]
    assert bars.x[:2] == pytest.approx((1.0, 2.0))
    # Over one of twice the batch, not over DDP.
    assert bars.x[4] < 1
    assert marks.x == (None, 1.2, None, None, 1.3)
    # A prediction is over DDP, a measurement over every control.
    assert (bars.name, marks.name) == ("measured, over the fastest control", "predicted, over DDP")
    assert figure.layout.xaxis.title.text.endswith("those of the control")
    assert figures.of(record).layout.xaxis.title.text.endswith("those of the fastest control")
    assert len(figures.of(record).data) == 1
    with pytest.raises(InvalidValueError, match="record must be a MeasuredWays, got 'record'"):
        figures.ways("record")


def test_waves_of_a_rank_have_rows_of_their_own() -> None:
    spans = [["forward", 0, "all (tick)", 1.0, 2.0], ["backward", 0, "all (tock)", 1.5, 3.0]]
    found = timeline_of("two waves", [{"spans": spans}, {"spans": []}], ("tick", "tock"))
    assert found is not None
    assert [(span.gpu, span.kind, span.start, span.end) for span in found.spans] == [
        (0, "forward", 0.0, 1.0),
        (1, "backward", 0.5, 2.0),
    ]
    labels = figures.timeline(found).layout.yaxis.ticktext
    assert labels == ("rank 0 tick", "rank 0 tock", "rank 1 tick", "rank 1 tock")
    assert timeline_of("DDP", [{"spans": []}], ()) is None


def test_partial_all_reduces_train_the_samples_of_those_that_were_there() -> None:
    """In 0.1 s an update of 8 samples, of which one rank computes half of its share: 6."""
    answers = [{"seconds": [0.1], "spans": [], "gradients": share} for share in (1.0, 0.5)]
    turns = SimpleNamespace(rounds={"solo": [MeasuredRounds(answers)]}, seconds=lambda _: (0.1,), device_name="by hand")
    job = SimpleNamespace(model_name="m")
    settings = {"solo": {"count": 2, "bucket": None}}
    found = compare._Measured(turns, job, 8, 2, None, 0.1, ("solo",), settings).record().way("solo")
    assert found.samples / found.seconds[0] == pytest.approx(6 / 0.1)


@pytest.mark.slow
@pytest.mark.processes
def test_ways_are_measured_by_turns(tmp_path: Path) -> None:
    so_far: list[MeasuredWays] = []
    ways = [
        "DDP",
        "DDP on fewer ranks",
        "majority",
        "two jobs apart",
        "crossover",
        "two waves",
        "rotating partitions",
        "1F1B pipeline",
        "GPipe pipeline",
    ]
    found = dp.compare_techniques(
        make_job(), global_batch=8, ways=ways, repetitions=2, rounds=2, late=0.01, buckets=[], on_record=so_far.append
    )
    assert [way.name for way in found.ways] == ways
    assert [one.repetitions for one in so_far] == [1, 2]
    # Rounds without an order have one mean of each repetition.
    assert [len(way.seconds) for way in found.ways] == [4, 4, 2, 4, 4, 4, 4, 4, 4]
    # One rank is late in each step, so whoever waits for it takes as long.
    assert min(found.way("DDP").seconds) > 0.01
    assert [way.samples for way in found.ways] == [8, 8, 8, 16, 16, 8, 8, 8, 8]
    assert {way.name: way.control_of for way in found.ways if way.control_of} == {"two jobs apart": "crossover"}
    assert found.way("DDP on fewer ranks").note == "on 1 of 2 ranks"
    assert found.way("two jobs apart").note == "two jobs, each on 1 of 2 ranks"
    lead = found.lead("majority")
    assert lead is not None and (lead.controls, lead.missing) == (4, ("DDP, best bucket",))
    assert found.way("two waves").controls == ("DDP, best bucket", "DDP on fewer ranks", "DDP, twice the batch")
    waves, partitions = found.way("two waves").timeline, found.way("rotating partitions").timeline
    assert waves is not None and partitions is not None
    assert {span.gpu % 2 for span in waves.spans if span.kind in ("forward", "backward")} == {0, 1}
    # In every phase both ranks compute the same partition.
    forwards = [
        [span.name for span in partitions.spans if span.gpu == gpu and span.kind == "forward"] for gpu in (0, 1)
    ]
    assert forwards[0] == forwards[1] and len(forwards[0]) == 2
    assert dp.load(dp.save(found, tmp_path / "ways.json")) == found


@pytest.mark.processes
def test_two_of_four_ranks_train_a_job_and_both_pairs_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "fewer_counts", lambda ranks: [2])
    found = dp.compare_techniques(
        make_job(), global_batch=8, ranks=4, ways=[FEWER, names.APART], repetitions=1, rounds=2, buckets=[]
    )
    assert [way.note for way in found.ways] == ["on 2 of 4 ranks", "two jobs, each on 2 of 4 ranks"]
    assert [(way.samples, way.idle_ranks) for way in found.ways] == [(8, 2), (16, 0)]
    assert min(seconds for way in found.ways for seconds in way.seconds) > 0


def test_what_cannot_be_compared_is_refused() -> None:
    for message, changes in {
        "ranks must be at least 2, got 1": {"ranks": 1},
        "rounds must be a whole number, got 2.5": {"rounds": 2.5},
        "give a multiple of 2, got 7": {"global_batch": 7},
        "got 'Horovod'": {"ways": ["Horovod"]},
        "late must not be negative": {"late": -1.0},
        r"does not run on device 'emulated' \(use device cpu or cuda\)": {"device": "emulated"},
        "burst parallelism needs a plan for 2 GPUs and a global batch of 8, got none": {"ways": [names.BURST]},
    }.items():
        with pytest.raises(InvalidValueError, match=message):
            dp.compare_techniques(make_job(), **{"global_batch": 8, "ways": ["DDP"]} | changes)
    with pytest.raises(InvalidValueError, match=r"accumulate or clip .*replace\(job, accumulation=1, clip_norm=None\)"):
        dp.compare_techniques(replace(make_job(), clip_norm=1.0), global_batch=8, ways=["DDP"])


def test_micro_batches_are_tried_down_to_two_samples() -> None:
    assert compare.micro_batches(2, 16) == [2, 4, 8]
    assert compare.micro_batches(4, 24) == [4, 8]
    assert compare.micro_batches(4, 4) == [4]


def test_torch_divides_a_model_only_where_a_module_begins() -> None:
    job = make_job()
    graph = job.capture().graph
    assert splits(graph, job.model, [(0,), (1, 2)]) == ["2"]
    with pytest.raises(InvalidValueError, match="in partition 1 of Sequential no module begins"):
        splits(graph, job.model, [(0, 1), ()])


def test_samples_are_sent_on_the_stream_that_reads_them() -> None:
    """The emulated device raises a HazardError where a wave's stream reads what another one writes."""
    save = lambda folder: save_job(make_job(), folder)  # noqa: E731
    with joined_ranks(compare.WORKER, 2, save=save, device="emulated", batch=8) as turns:
        turns.prepare(names.TWO_WAVES, warm_up=1)
        assert all(seconds > 0 for seconds in turns.train(names.TWO_WAVES, 2).seconds)
