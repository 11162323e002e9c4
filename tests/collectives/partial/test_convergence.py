"""The bound of eager-SGD against trainings on a loss whose constants are known."""

import math
import random

import numpy as np
import pytest

from deeppool.collectives.partial.convergence import convergence_bound
from deeppool.errors import InvalidValueError

KNOWN = {"smoothness": 1.5, "second_moment": 2.0, "gap": 3.0, "target": 0.5}


def smallest_norm(rate: float, updates: int, ranks: int, quorum: int, staleness: int, seed: int) -> float:
    """Trains on the sum of log cosh (L = 1, m = 0) with gradients that are held back as long as the rule allows."""
    draw, noise = random.Random(seed), np.random.default_rng(seed)
    weights = np.array([1.0, -0.7])
    pending = [np.zeros(2) for _ in range(ranks)]
    waited = [0] * ranks
    smallest = math.inf
    for _ in range(updates):
        smallest = min(smallest, float(np.square(np.tanh(weights)).sum()))
        for rank in range(ranks):
            pending[rank] = pending[rank] + np.tanh(weights) + noise.choice([-1.0, 1.0], 2)
        taken = set(draw.sample(range(ranks), quorum)) | {rank for rank in range(ranks) if waited[rank] >= staleness}
        total = np.zeros(2)
        for rank in range(ranks):
            waited[rank] = 0 if rank in taken else waited[rank] + 1
            if rank in taken:
                total, pending[rank] = total + pending[rank], np.zeros(2)
        weights = weights - rate * total / ranks
    return smallest


@pytest.mark.slow
@pytest.mark.parametrize(("quorum", "staleness"), [(1, 8), (2, 3), (4, 8)])
def test_trainings_reach_the_target_within_the_updates_at_the_learning_rate(quorum: int, staleness: int) -> None:
    gap = float(np.log(np.cosh([1.0, 0.7])).sum())
    # Each element of a gradient is tanh plus or minus 1: its mean square is at most 2.
    bound = convergence_bound(
        ranks=4, quorum=quorum, staleness=staleness, smoothness=1.0, second_moment=2.0, gap=gap, target=0.2
    )
    for seed in range(5):
        assert smallest_norm(bound.learning_rate, bound.updates, 4, quorum, staleness, seed) <= 0.2
    # It is a bound that says something: a hundredth of the updates is not enough.
    assert smallest_norm(bound.learning_rate, bound.updates // 100, 4, quorum, staleness, 0) > 0.2


def test_all_terms_of_the_theorem_bound_the_learning_rate() -> None:
    for ranks, quorum, staleness in ((8, 1, 32), (64, 32, 2), (2, 1, 1), (8, 8, 32), (8, 1, 0)):
        bound = convergence_bound(ranks=ranks, quorum=quorum, staleness=staleness, **KNOWN)
        L, M, eps = KNOWN["smoothness"], KNOWN["second_moment"], KNOWN["target"]  # noqa: N806
        missed = staleness * (ranks - quorum)
        terms = [eps / (12 * M**2 * L)]
        if missed:
            terms += [eps**0.5 * ranks / (12**0.5 * L * missed * M), eps**0.5 * ranks / (4 * 3**0.5 * L * missed * M)]
        assert bound.learning_rate == pytest.approx(min(terms))
        late = (L * bound.learning_rate * M * missed / ranks) ** 2
        left = 4 * KNOWN["gap"] / (bound.learning_rate * bound.updates) + 2 * L * bound.learning_rate * M**2 + 4 * late
        assert left <= eps
        assert (bound.updates == bound.synchronous_updates) == (terms[0] == min(terms))


def test_more_stale_gradients_and_smaller_rounds_need_more_updates_in_proportion() -> None:
    def updates(quorum: int, staleness: int) -> int:
        return convergence_bound(ranks=8, quorum=quorum, staleness=staleness, **KNOWN).updates

    assert updates(1, 64) == pytest.approx(2 * updates(1, 32), rel=1e-3)
    assert updates(1, 32) == pytest.approx(7 / 4 * updates(4, 32), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [({"quorum": 9}, "quorum is 1 to 8"), ({"staleness": -1}, "at least 0"), ({"target": 0.0}, "target is a positive")],
)
def test_impossible_values_are_refused(change: dict, phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        convergence_bound(**({"ranks": 8, "quorum": 1, "staleness": 32, **KNOWN} | change))
