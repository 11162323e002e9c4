"""A Trainer of transformers with transfers trains as with its own DistributedDataParallel."""

import json
from importlib.util import find_spec

import pytest

from tests.adapters import transformers_rank
from tests.adapters.ranks import RANKS, STEPS
from tests.ranks import free_port, run_ranks

# Not importorskip: importing them takes seconds of every collection of the tests.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(transformers_rank.run, (folder, free_port()), RANKS, transformers_rank.prepare)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("case", transformers_rank.CASES)
def test_losses_and_weights_are_those_of_ddp(case: str, found: list[dict]) -> None:
    wanted, ours = found[0][f"{case}, DDP"], found[0][f"{case}, transfers"]
    assert len(ours["losses"]) == STEPS and ours["losses"][-1] < ours["losses"][0] / 2
    assert ours["losses"] == pytest.approx(wanted["losses"], rel=2e-3, abs=2e-4)
    assert ours["weights"] == pytest.approx(wanted["weights"], rel=1e-4, abs=1e-5)
    assert ours["read"] == pytest.approx(wanted["read"], rel=1e-4)
    assert len(ours["read"]) == (2 * STEPS if case == "read" else 0)
    assert found[1][f"{case}, transfers"]["weights"] == ours["weights"]


def test_norms_are_those_of_ddp_where_they_are_clipped_and_none_elsewhere(found: list[dict]) -> None:
    wanted, ours = found[0]["clipped, DDP"]["norms"], found[0]["clipped, transfers"]["norms"]
    assert ours == pytest.approx(wanted, rel=1e-3)
    assert set(found[0]["not clipped, transfers"]["norms"]) == {None}


def test_the_plan_sends_every_gradient_and_checkpoints_are_written(found: list[dict]) -> None:
    for case in transformers_rank.CASES:
        ours = found[0][f"{case}, transfers"]
        # Where gradients are clipped or read each update waits for all transfers, and no iteration is as planned.
        groups = found[0][f"{case}, DDP"]["groups"]
        assert (ours["sent"], ours["timeline"], ours["groups"]) == (
            6,
            case in ("not clipped", "accumulated"),
            groups,
        )
