"""The micro-benchmark of partial all-reduces, small: who waits for whom."""

import numpy as np
import pytest

from deeppool.collectives.partial.firing import FiringRule
from deeppool.errors import InvalidValueError
from deeppool.evaluation.experiments.skewed_calls import SkewedCalls, skewed_calls


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shared-memory", "tcp-python"])
def test_the_first_rank_waits_for_the_last_one_in_a_synchronous_all_reduce(transport) -> None:
    found = skewed_calls("full", transport=transport, ranks=3, iterations=2, skew=0.5)
    assert found.latencies.shape == found.accepted.shape == (2, 3)
    assert found.accepted.all()
    # Ranks arrive 1, 0.5 and 0 s before the last one; a busy machine wakes one up too late, but not by that much.
    assert (found.latencies[:, 0] > found.latencies[:, 2]).all()
    assert found.ideal == pytest.approx(0.5)
    assert found.mean > 0.5 * found.ideal


def test_the_ideal_is_what_the_drawn_initiators_let_the_ranks_wait() -> None:
    latencies = np.zeros((5, 4))
    found = SkewedCalls("shared-memory", "majority", 1, 0.1, latencies, latencies > 0)
    initiators = [FiringRule(4, "majority").initiator(number) for number in range(5)]
    waits = [0.1 * max(0, initiator - rank) for initiator in initiators for rank in range(4)]
    assert found.ideal == pytest.approx(np.mean(waits))
    assert (found.mean, found.active) == (0, 0)


def test_what_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError, match="'quorum' cannot be measured over 'shared-memory'"):
        skewed_calls("quorum")
    with pytest.raises(InvalidValueError, match=r"ranks must be at least 2, got 1 \(one rank waits for no other\)"):
        skewed_calls("solo", ranks=1)
    monkeypatch.setattr("deeppool.evaluation.experiments.skewed_calls.load_engine", lambda: None)
    with pytest.raises(InvalidValueError, match="'solo' cannot be measured over 'tcp-native'"):
        skewed_calls("solo", transport="tcp-native")
