"""TF32 of products and convolutions: torch's newer settings and its older flags agree, and are restored."""

from typing import Any

import pytest
import torch

from deeppool.device.cuda import CudaDevice
from deeppool.device.protocol import Precision

BACKENDS: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]


def settings() -> list[Any]:
    """Raises, as torch.export does, where settings and flags differ."""
    flags = [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
    return [*flags, *(backend.fp32_precision for backend in BACKENDS)]


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("fp32", False), ("fp16", False)])
def test_settings_and_flags_agree_in_the_block_and_are_as_before_after_it(precision: Precision, allowed: bool) -> None:
    before = settings()
    with CudaDevice.__new__(CudaDevice).arithmetic(precision):
        assert settings() == [allowed] * 2 + ["tf32" if allowed else "ieee"] * 3
    assert settings() == before


def test_a_user_who_has_set_the_newer_settings_alone_keeps_them() -> None:
    before = [backend.fp32_precision for backend in BACKENDS]
    try:
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="different TF32 flags"):
            settings()
        with CudaDevice.__new__(CudaDevice).arithmetic("tf32"):
            assert [backend.fp32_precision for backend in BACKENDS] == ["tf32"] * 3
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"  # type: ignore[attr-defined]
    finally:
        for backend, setting in zip(BACKENDS, before, strict=True):
            backend.fp32_precision = setting
