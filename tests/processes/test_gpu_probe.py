"""Devices on which a process of its own computes, and those on which it cannot."""

import pytest
import torch

from deeppool.processes import gpu_probe
from deeppool.processes.gpu_probe import computing_gpus
from tests.processes.children import children

pytestmark = pytest.mark.processes


def test_a_device_that_cannot_be_initialised_does_not_compute() -> None:
    assert computing_gpus("cpu", [0, 1]) == {0, 1}
    # Beyond the last GPU there is none, with or without a driver.
    last = torch.cuda.device_count()
    assert computing_gpus("cuda", [*range(last), last]) == {*range(last)}
    assert children() == []


def test_a_device_that_does_not_answer_in_time_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "PROBE_SECONDS", 0.0)
    assert computing_gpus("cpu", [0]) == set()
    assert children() == []
