"""Variable elimination, against every assignment of values."""

import itertools
import random

import numpy as np
import pytest

from deeppool.planning.search.elimination import Elimination, Factor


def random_factors(rng, sizes):
    """Returns factors of one to three variables; some entries are not permitted, some axes do not matter."""
    factors = []
    for _ in range(rng.randint(len(sizes), 2 * len(sizes))):
        variables = tuple(sorted(rng.sample(list(sizes), rng.randint(1, min(3, len(sizes))))))
        shape = [sizes[variable] if rng.random() < 0.9 else 1 for variable in variables]
        table = np.array([rng.choice([rng.random(), rng.random(), np.inf]) for _ in range(int(np.prod(shape)))])
        factors.append(Factor(variables, table.reshape(shape)))
    return factors


def total(factors, values):
    """The sum of factors by the values of all variables."""
    result = 0.0
    for factor in factors:
        chosen = [values[variable] for variable in factor.variables]
        result += float(factor.table[tuple(map(min, chosen, (length - 1 for length in factor.table.shape)))])
    return result


def least_sums(factors, sizes, kept):
    """Values of the kept variables → the least sum over the others."""
    found = {}
    for chosen in itertools.product(*map(range, sizes.values())):
        values = dict(zip(sizes, chosen, strict=True))
        key = tuple(values[variable] for variable in kept)
        found[key] = min(found.get(key, np.inf), total(factors, values))
    return found


@pytest.mark.parametrize("most", [10**6, 6, 1])
def test_the_least_sum_is_found_or_bounded(most):
    exact = divided = 0
    for seed in range(150):
        rng = random.Random(f"factors {seed}")
        sizes = {variable: rng.randint(1, 3) for variable in range(-1, rng.randint(2, 5))}
        kept = (-1, max(sizes))
        factors = random_factors(rng, sizes)
        found = Elimination(factors, sizes, kept, most)
        for key, least in least_sums(factors, sizes, kept).items():
            assert found.least[key] <= least * (1 + 1e-12)
            values = found.best(dict(zip(kept, key, strict=True)))
            assert set(values) == set(sizes)
            if found.exact:
                assert found.least[key] == pytest.approx(least)
                assert total(factors, values) == pytest.approx(least)
        exact += found.exact
        divided += not found.exact
    assert exact == 150 if most == 10**6 else divided > 50


def test_a_chain_by_hand():
    """0 ── 1 ── 2: with 0 and 2 at their first values, 1 costs 1 + 4 or 3 + 1."""
    factors = [Factor((0, 1), np.array([[1.0, 3.0]])), Factor((1, 2), np.array([[4.0], [1.0]]))]
    found = Elimination(factors, {0: 1, 1: 2, 2: 1}, (0, 2), 100)
    assert found.exact and found.least.tolist() == [[4.0]]
    assert found.best({0: 0, 2: 0}) == {0: 0, 1: 1, 2: 0}
