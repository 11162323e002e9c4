"""A capture in advance changes no random number of what follows."""

import torch

from deeppool.graph.capture.rehearsal import rehearse


def test_a_rehearsal_draws_no_number() -> None:
    before = torch.get_rng_state()
    rehearse()
    assert torch.equal(torch.get_rng_state(), before)
