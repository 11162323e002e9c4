"""Progress of a training: reports of the ranks become metrics, and repeated updates count once."""

import math
import os
from pathlib import Path

import pytest

from deeppool.errors import DocumentError, RunError
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.records.training_record import Attempt, Metrics
from deeppool.runs.training_state import TrainingProgress, metrics_of
from tests.figures.records import two_layer_plan

NO_CHECKPOINTS = CheckpointFolder(path=None, every=100, keep=2, model="m", graph_fingerprint="f", global_batch=8)
START = Attempt((0, 1), 0.1, ((2, 3), (1, 1)), 0, 0, None, "")


def report(step: int, rank: int, loss: float = 0.0, seconds: float = 1.0, **more: object) -> dict:
    fields = {"step": step, "rank": rank, "loss": loss, "seconds": seconds, "skipped": False}
    return fields | {"computed_share": 0.5, "computed": True} | more


def test_an_update_is_complete_when_every_rank_has_reported_it() -> None:
    progress = TrainingProgress()
    first = [report(1, 0), report(1, 1)]
    assert progress.add_report(first[0], ranks=2) == []
    assert progress.add_report(report(2, 0), ranks=2) == []
    assert progress.add_report(first[1], ranks=2) == first


def test_reports_and_metrics_after_the_checkpoint_are_dropped_on_resuming() -> None:
    progress = TrainingProgress(metrics=[Metrics(update, 1.0, 1.0, 8.0, None) for update in (1, 2, 3)])
    progress.attempts.append(START)
    progress.add_report(report(4, 0), ranks=2)
    progress.resume(2)
    assert [metrics.update for metrics in progress.metrics] == [1, 2]
    # The other rank's report of the repeated update does not complete the one from before the fault.
    assert progress.add_report(report(4, 1), ranks=2) == []


def test_each_attempt_has_its_updates_and_the_seconds_without_one_before_them() -> None:
    progress = TrainingProgress()

    def attempt(resumed: int, updates: range, since_last: float, ended: str) -> None:
        progress.attempts.append(START)
        progress.resume(resumed)
        for update in updates:
            progress.add_metrics(Metrics(update, 1.0, 1.0, 8.0, None), since_last)
        progress.end_attempt(ended)

    attempt(0, range(1, 4), 0.5, "rank 1 died")
    attempt(2, range(3, 3), 0.0, "rank 0 died")
    attempt(2, range(3, 6), 7.0, "")
    assert [metrics.update for metrics in progress.metrics] == [1, 2, 3, 4, 5]
    found = [(each.resumed_after, each.last_update, each.recovery, each.ended) for each in progress.attempts]
    assert found == [(0, 3, None, "rank 1 died"), (2, 2, None, "rank 0 died"), (2, 5, 7.0, "")]
    assert str(progress.attempts[1]) == (
        "no update on GPUs 0,1; planned 100 ms an iteration, layers: 3 on 2, 1 on 1; rank 0 died"
    )
    assert str(progress.attempts[2]).startswith("updates 3 to 5 on GPUs 0,1, after 7 s without one; planned")


def test_metrics_are_of_the_slowest_rank_and_the_whole_batch() -> None:
    reports = [report(3, 0, seconds=2.0, learning_rate=0.1), report(3, 1, loss=1.5, seconds=4.0)]
    assert metrics_of(reports, 8, "m", NO_CHECKPOINTS) == Metrics(3, 1.5, 4.0, 2.0, 0.1)


def test_metrics_of_an_update_that_a_late_rank_left_out_are_of_those_that_computed_it() -> None:
    reports = [
        report(3, 0, loss=0.5, seconds=2.0, computed_share=0.25),
        report(3, 1, loss=1.0, seconds=9.0, computed_share=0.25),
        report(3, 2, seconds=0.1, computed_share=0.0, computed=False),
    ]
    assert metrics_of(reports, 8, "m", NO_CHECKPOINTS) == Metrics(3, 3.0, 2.0, 2.0, None)


def test_times_and_timeline_are_of_the_updates_by_the_last_plan_of_transfers_once_there_are_some() -> None:
    progress = TrainingProgress()

    def chunk(times: list[float], by: str | None, count: int) -> None:
        """Adds updates, the last ``count`` of which are by a plan."""
        spans = [[("sync", 0, f"{seconds}", 0.0, seconds)] for seconds in times]
        by_transfers = [len(times) - position <= count for position in range(len(times))]
        answer = {"times": times, "spans": spans, "transfers": by and {"by": by}, "by_transfers": by_transfers}
        progress.add_times([answer], ranks_wait=True)

    def shown() -> list[float]:
        (span,) = progress.typical.timeline(two_layer_plan(1)).spans
        return [*progress.times, span.end]

    # Without a plan, all but the first of a chunk count.
    chunk([9.0, 1.0, 1.5, 2.0], None, 4)
    assert shown() == [1.0, 1.5, 2.0, 1.5]
    # A plan is made at the end of a chunk.
    chunk([9.0, 1.5], "a", 0)
    assert shown() == [1.0, 1.5, 2.0, 1.5, 1.5]
    chunk([9.0, 5.0, 6.0], "a", 3)
    chunk([7.0], "a", 1)
    assert progress.times == [5.0, 6.0]
    # It replaces the plan before in the middle of a chunk; the first update by it finishes none of its transfers.
    chunk([9.0, 1.5, 3.0, 3.5, 4.0], "b", 3)
    assert shown() == [3.5, 4.0, 3.5]


def test_a_skipped_update_has_no_loss_and_any_other_loss_must_be_finite() -> None:
    overflowed = [report(3, 0), report(3, 1, loss=math.inf, skipped=True)]
    assert metrics_of(overflowed, 8, "m", NO_CHECKPOINTS).loss is None
    with pytest.raises(RunError, match=r"the loss is nan after update 3 of m, on rank 1; there is no checkpoint"):
        metrics_of([report(3, 0), report(3, 1, loss=math.nan)], 8, "m", NO_CHECKPOINTS)
    # A record with it could not be read again.
    with pytest.raises(RunError, match=r"the loss is 1e\+31 after update 3 of m, on rank 1; there is no checkpoint"):
        metrics_of([report(3, 0), report(3, 1, loss=1e31)], 8, "m", NO_CHECKPOINTS)
    with pytest.raises(RunError, match=r"the loss is 1.2e\+30 after update 3 of m; there is no checkpoint"):
        metrics_of([report(3, rank, loss=6e29) for rank in (0, 1)], 8, "m", NO_CHECKPOINTS)


@pytest.mark.parametrize(("updates", "due"), [(0, 5), (4, 5), (5, 10), (10, 12)])
def test_a_checkpoint_is_due_at_multiples_and_after_the_last_update(updates: int, due: int, tmp_path: Path) -> None:
    folder = CheckpointFolder(path=tmp_path, every=5, keep=2, model="m", graph_fingerprint="f", global_batch=8)
    assert folder.next_due(updates, 12) == due
    assert NO_CHECKPOINTS.next_due(updates, 12) == 12


def test_a_folder_from_which_torch_could_not_read_is_refused_before_the_training(tmp_path):
    named = tmp_path / os.fsdecode(b"not-utf8-\xff")
    folder = CheckpointFolder(path=named, every=5, keep=2, model="m", graph_fingerprint="f", global_batch=8)
    with pytest.raises(DocumentError, match=r"cannot write '.*not-utf8-.*': it is not UTF-8"), folder.locked():
        pass
    assert not named.exists()
