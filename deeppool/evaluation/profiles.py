"""Profiles for the models of an evaluation: named ones, or estimates for a GPU that need not be present."""

from collections.abc import Mapping, Sequence

from deeppool.device.protocol import Precision
from deeppool.profiling.estimate.estimate import estimate
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Profile


def find_profiles(
    models: Mapping[str, Sequence[int]],
    batches: Mapping[str, int],
    *,
    gpu: str,
    precision: Precision,
    files: Mapping[str, str] | None = None,
) -> dict[str, Profile]:
    """Returns a profile for each model, up to its largest batch on one GPU.

    Args:
        models: sample shape by model name.
        batches: largest batch by model name; it and the powers of two below it are estimated.
        gpu: GPU of the estimates, see :func:`deeppool.estimate`.
        precision: precision of the estimates.
        files: file or name of a profile by model name, used in place of an estimate.

    Raises:
        InvalidValueError: unknown GPU or model.
        DocumentError: a file is not a profile.
    """
    named = files or {}
    return {
        model: find_profile(named[model])
        if model in named
        else estimate(model, tuple(shape), gpu=gpu, precision=precision, batch_sizes=_sizes(batches[model]))
        for model, shape in models.items()
    }


def _sizes(most: int) -> list[int]:
    """Returns powers of two up to ``most``, and ``most`` itself."""
    return sorted({*(2**exponent for exponent in range(most.bit_length())), most})
