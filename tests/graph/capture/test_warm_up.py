"""A warm-up capture changes nothing of what follows: no random number, and no use of a GPU."""

import pytest
import torch

from deeppool.graph.capture.warm_up import warm_up


def test_a_warm_up_draws_no_number() -> None:
    before = torch.get_rng_state()
    warm_up()
    assert torch.equal(torch.get_rng_state(), before)


def test_no_driver_is_asked_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses every process that is forked after that."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", pytest.fail)
    warm_up()
