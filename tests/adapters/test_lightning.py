"""A Trainer of Lightning with transfers trains as with its own DistributedDataParallel."""

import json
import math
from importlib.util import find_spec

import pytest

from tests.adapters import lightning_rank
from tests.adapters.ranks import RANKS, STEPS
from tests.ranks import free_port, run_ranks

# Not importorskip: importing it takes seconds of every collection of the tests.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(lightning_rank.run, (folder, free_port()), RANKS, lightning_rank.prepare)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


COMPARED = [case for case in lightning_rank.CASES if case != "fp16"]


@pytest.mark.parametrize("case", COMPARED)
def test_losses_and_weights_are_those_of_ddp_on_every_rank(case: str, found: list[dict]) -> None:
    for rank in found:
        wanted, ours = rank[f"{case}, DDP"], rank[f"{case}, transfers"]
        assert len(ours["losses"]) == STEPS * lightning_rank.CASES[case].get("accumulate_grad_batches", 1)
        assert ours["losses"] == pytest.approx(wanted["losses"], rel=1e-4)
        assert ours["checked"] == pytest.approx(wanted["checked"], rel=1e-4)
        assert ours["weights"] == pytest.approx(wanted["weights"], rel=1e-4, abs=1e-6)
        assert ours["read"] == pytest.approx(wanted["read"], rel=1e-4, nan_ok=True)
    assert found[0][f"{case}, transfers"]["weights"] == found[1][f"{case}, transfers"]["weights"]
    assert sum(ours["losses"][-5:]) < sum(ours["losses"][:5])


def test_the_plan_sends_every_gradient_and_checkpoints_are_written(found: list[dict]) -> None:
    for case in COMPARED:
        ours, wanted = found[0][f"{case}, transfers"], found[0][f"{case}, DDP"]
        # Where gradients are clipped or read each update waits for all transfers, and no iteration is as planned.
        assert (ours["sent"], ours["timeline"]) == (6, case not in ("clipped", "read in steps"))
        assert ours["checkpoints"] == wanted["checkpoints"] > 0


def test_callbacks_read_what_they_read_with_ddp(found: list[dict]) -> None:
    counts = [len(found[0][f"read {where}, transfers"]["read"]) for where in ("in steps", "in epochs", "by schedule")]
    assert counts == [4 * STEPS, 4, STEPS]
    # The gradients of all updates but the last one, which nothing follows.
    read = found[0]["read in zero_grad, transfers"]["read"]
    assert sum(map(math.isnan, read)) == len(read) / STEPS / 2


def test_fp16_is_refused_for_its_steps_that_are_left_out(found: list[dict]) -> None:
    for rank in found:
        assert "in fp32 or bf16-mixed, got 1 optimizers in 16-mixed" in rank["fp16"]
