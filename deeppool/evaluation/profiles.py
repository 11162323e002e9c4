"""Layer times for the models of an evaluation: named ones, or estimates where there is no GPU at hand."""

from collections.abc import Mapping, Sequence

from deeppool.device.protocol import Precision
from deeppool.profiling.estimate.estimate import estimate
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Profile


def find_profiles(
    models: Mapping[str, Sequence[int]],
    global_batches: Mapping[str, int],
    *,
    gpu: str,
    precision: Precision,
    files: Mapping[str, str] | None = None,
) -> dict[str, Profile]:
    """A profile for each model, up to its whole global batch on one GPU.

    Args:
        models: name of a model → shape of one of its samples.
        global_batches: of each; it and the powers of two below are estimated.
        gpu: of the estimates, see :func:`deeppool.estimate`.
        precision: of the estimates.
        files: model → file or name of a profile, in place of an estimate.

    Raises:
        InvalidValueError: a GPU or a model that is not known.
        DocumentError: a file that is no profile.
    """
    named = files or {}
    return {
        model: find_profile(named[model])
        if model in named
        else estimate(model, tuple(shape), gpu=gpu, precision=precision, batch_sizes=_sizes(global_batches[model]))
        for model, shape in models.items()
    }


def _sizes(most: int) -> list[int]:
    """Powers of two, and the most."""
    return sorted({*(2**exponent for exponent in range(most.bit_length())), most})
