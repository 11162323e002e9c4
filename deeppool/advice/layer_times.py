"""Layer times of a model at the per-GPU batches that plans for a number of GPUs need."""

from os.path import isfile
from pathlib import Path
from typing import TypeGuard

import torch

from deeppool.device.find import find_device
from deeppool.device.kinds import KINDS
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress
from deeppool.planning.request import check_batch
from deeppool.profiling.estimate.estimate import estimate
from deeppool.profiling.measure.profile import profile
from deeppool.profiling.shipped import find_profile, shipped_names
from deeppool.profiling.table import Profile


def is_measured(device: str) -> bool:
    """Whether layers are measured on a device of this name, and not estimated for a GPU of this name."""
    return device == "auto" or str(device).partition(":")[0] in KINDS


def names_profile(model: object) -> TypeGuard[str]:
    """Whether a model is the file of a profile, or the name of a shipped one."""
    return isinstance(model, str) and (Path(model).suffix == ".json" or isfile(model) or model in shipped_names())


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
        device: ``auto``, ``cpu``, ``cuda``, ``emulated`` or ``emulated:GPU``, or a GPU of :func:`deeppool.estimate`.
        precision: as for :func:`deeppool.estimate`; other devices than CUDA measure fp32 in place of tf32.
        input_shape: shape of one sample, for a model that is not captured yet.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: no samples, an unknown device, or the shape of a profile.
        PlanError: more GPUs than samples.
    """
    if isinstance(model, Profile) or names_profile(model):
        found = model if isinstance(model, Profile) else find_profile(model)
        if input_shape is not None:
            raise InvalidValueError(
                f"input_shape is for a model, and the profile of {found.graph.model} has its own, "
                f"{','.join(map(str, found.graph.input_shape))} (leave it out, or give the model)"
            )
        return found
    global_batch = check_batch(gpus, global_batch)
    sizes = shard_sizes(gpus, global_batch)
    if is_measured(device):
        measured: Precision = "fp32" if precision == "tf32" and find_device(device).kind != "cuda" else precision
        return profile(
            model, input_shape, device=device, batch_sizes=sizes, precision=measured, on_progress=on_progress
        )
    return estimate(model, input_shape, gpu=device, batch_sizes=sizes, precision=precision, on_progress=on_progress)


def shard_sizes(gpus: int, global_batch: int) -> list[int]:
    """Returns the per-GPU batches on any power of two of GPUs, and on all of them."""
    return sorted({-(-global_batch // count) for count in (*(2**power for power in range(gpus.bit_length())), gpus)})


def profile_command(model: object, name: str, made: Profile, device: str) -> str | None:
    """Returns the command that writes a named model's profile; None where it is a profile, or has no name.

    Args:
        model: what the advice is about.
        name: file to write.
        made: its profile.
        device: see :func:`layer_times`.
    """
    if not isinstance(model, str) or names_profile(model):
        return None
    how = f"profile {model} --device" if is_measured(device) else f"estimate {model} --gpu"
    sizes = ",".join(map(str, made.batch_sizes))
    # Only of one input is the shape a list of numbers.
    inputs = made.graph.inputs
    shape = f"--input-shape {','.join(map(str, inputs[0].shape))} " if len(inputs) == 1 else ""
    return f"deeppool {how} {device} {shape}--precision {made.precision} --batch-sizes {sizes} -o {name}"
