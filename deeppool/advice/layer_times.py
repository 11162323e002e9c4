"""Layer times of a model at the per-GPU batches that plans for a number of GPUs need."""

from pathlib import Path

import torch

from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress
from deeppool.planning.request import check_batch
from deeppool.profiling.estimate.estimate import estimate
from deeppool.profiling.measure.profile import profile
from deeppool.profiling.shipped import find_profile
from deeppool.profiling.table import Profile


def layer_times(
    model: Profile | CapturedModel | torch.nn.Module | str,
    gpus: int,
    global_batch: int,
    *,
    device: str,
    precision: Precision,
    input_shape: Shapes | None = None,
    on_progress: Progress | None = None,
) -> Profile:
    """Returns a given profile, an estimate for a GPU with a data sheet, or a measurement on this machine's CPU or GPU.

    Args:
        model: see :func:`deeppool.advise`.
        gpus: most GPUs of a layer.
        global_batch: samples per iteration, over all GPUs.
        device: ``auto``, ``cpu`` or ``cuda``, or a GPU of :func:`deeppool.estimate`.
        precision: as for :func:`deeppool.estimate`; a CPU measures fp32 in place of tf32.
        input_shape: shape of one sample, for a model that is not captured yet.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: no samples, or an unknown device.
        PlanError: more GPUs than samples.
    """
    if isinstance(model, Profile):
        return model
    if isinstance(model, str) and (Path(model).suffix == ".json" or Path(model).is_file()):
        return find_profile(model)
    if global_batch < 1:
        raise InvalidValueError(f"global_batch must be at least 1, got {global_batch}")
    check_batch(gpus, global_batch)
    sizes = sorted({-(-global_batch // 2**power) for power in range(gpus.bit_length())} | {-(-global_batch // gpus)})
    if device in ("auto", "cpu", "cuda"):
        measured: Precision = "fp32" if precision == "tf32" and device == "cpu" else precision
        return profile(
            model, input_shape, device=device, batch_sizes=sizes, precision=measured, on_progress=on_progress
        )
    return estimate(model, input_shape, gpu=device, batch_sizes=sizes, precision=precision, on_progress=on_progress)
