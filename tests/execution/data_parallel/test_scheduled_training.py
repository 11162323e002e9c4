"""A wrapped model trains as one process on the samples of all ranks, though updates end in the next forward."""

import json
from pathlib import Path

import pytest

from tests.execution.data_parallel.wrapped_rank import CASES, run
from tests.ranks import run_ranks

EVERY = [case.name for case in CASES]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "counts",
    [
        {2: ["caramel", "dear", "trying"], 3: EVERY, 4: ["trying-adamw", "adamw"], 8: ["caramel"]},
        pytest.param({2: EVERY, 4: EVERY, 5: EVERY, 8: EVERY}, marks=pytest.mark.stress),
    ],
)
def test_parameters_are_those_of_one_process_on_any_number_of_ranks(counts: dict, tmp_path: Path) -> None:
    """In every rank: values, evaluation, checkpoint, and versions that forwards read; see wrapped_rank.train."""
    run_ranks(run, (8, counts, str(tmp_path)), 8)
    answers = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(8)]
    for count, names in counts.items():
        for case in (case for case in CASES if case.name in names):
            found = [answer[f"{case.name} of {count}"] for answer in answers[:count]]
            # Branches run in another order on every other rank, and their gradients are ready in another order.
            assert len({answer["plan"] for answer in found}) == 1
            logs = [answer["issued"] for answer in found]
            assert all(log == logs[0] for log in logs)
            plan = json.loads(found[0]["plan"])
            expected = list(range(len(plan["transfers"])))
            planned = case.updates - 1 - case.method.measured_updates
            assert len(logs[0]) == planned
            if not case.method.tried_updates:
                assert logs[0] == [expected] * planned
                # Without clipping an update is under way when step returns.
                assert all(bool(left) == (case.clip_norm is None) for left in found[0]["unfinished"])
                assert "library" not in {transfer["pattern"] for transfer in plan["transfers"]}
                continue
            # Plans of other transfers were performed before, and the kept one at the end.
            assert logs[0][-3:] == [expected] * 3
            assert len({len(log) for log in logs[0]}) > 1
            tried = [each["seconds"] for each in plan["tried"]]
            assert 4 <= len(tried) <= 7
            # Those of the last round have had a turn in each.
            assert sorted(map(len, tried))[-2:] == [len(tried[0])] * 2
            assert len(plan["transfers"]) == plan["tried"][0]["transfers"]
            # Between two plans, and only there, nothing is under way.
            if case.clip_norm is None:
                assert {bool(left) for left in found[0]["unfinished"]} == {False, True}
                assert all(found[0]["unfinished"][-3:])
