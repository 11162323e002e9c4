"""The claim of optimality and its factor."""

import pytest

from deeppool.planning.search.optimality import certificate, optimality_factor


@pytest.mark.parametrize(
    ("factor", "claim", "read"),
    [
        (1.0, "exact", 1.0),
        (1 + 1e-13, "exact", 1.0),
        (1.0201, "bound 1.021", 1.021),
        (1.02, "bound 1.020", 1.02),
    ],
)
def test_a_claim_is_rounded_up_and_read_back(factor, claim, read):
    assert certificate(factor) == claim
    assert optimality_factor(claim) == read >= factor - 1e-12
