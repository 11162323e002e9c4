"""Estimated profiles: layer times from a GPU's data sheet or a calibration, of a device that need not be present."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.device.calibration import Calibration
from deeppool.device.datasheet import GpuSheet
from deeppool.device.environment import package_versions
from deeppool.device.kernel import Kernel
from deeppool.device.protocol import AUTOCAST, Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel, Model, capture
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress
from deeppool.profiling.estimate.layer_work import LayerWork, model_works
from deeppool.profiling.estimate.source import KernelTimes, kernel_times
from deeppool.profiling.table import BatchSizes, Measurement, Profile, distinct_sizes

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)

WIDEST = 4
"""Bytes of the numbers of fp32, the widest whose products have a known rate."""
VIEW = 1e-9
"""Seconds per sample of a layer that launches no kernel, such as a view: profiles have no zero times, because
amplification is relative to a layer's time. Proportional to the batch, because a view costs no more on many GPUs."""


@interruptible
@typed
def estimate(
    model: CapturedModel | Model,
    input_shape: Shapes | None = None,
    *,
    gpu: str | Path | GpuSheet | Calibration,
    batch_sizes: BatchSizes = BATCH_SIZES,
    precision: Precision | None = None,
    output: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Profile:
    """Estimates every distinct layer at several per-GPU batch sizes, on a machine with or without a GPU.

    The kernels of a layer's forward and backward, with their FLOPs and bytes, are found on tensors without data
    (:mod:`deeppool.profiling.estimate.layer_work`); their times follow from the data sheet
    (:mod:`deeppool.device.roofline`), or from the calibration of a device (:mod:`deeppool.device.calibration`).

    Args:
        model: a captured model, or what :func:`deeppool.capture` takes.
        input_shape: shape of one sample, for a model that is not captured yet.
        gpu: a name (``deeppool estimate --gpu list``), a :class:`~deeppool.device.datasheet.GpuSheet`, a
            :class:`~deeppool.device.calibration.Calibration`, or a file of either.
        batch_sizes: per-GPU batch sizes to estimate; a plan interpolates between them.
        precision: ``tf32`` rounds the inputs of convolutions and matrix products to TF32, ``fp32`` does not (as
            in :func:`deeppool.profile`); ``bf16`` and ``fp16`` as under autocast. None: tf32 by a data sheet, and
            that of a calibration.
        output: file to save the profile to.
        on_progress: see :data:`deeppool.job.Progress`.

    Returns:
        A profile whose ``provenance`` is ``estimated`` and whose ``method`` states the cost model and its known error.

    Raises:
        InvalidValueError: unknown GPU, one without products in the precision, another precision than that of the
            calibration, products in fp64, or batch sizes that are not positive.
    """
    source = kernel_times(gpu, precision)
    sizes = distinct_sizes(batch_sizes)
    path = serialization.check_writable(output) if output is not None else None
    report = on_progress or (lambda what, share: None)
    if isinstance(model, CapturedModel):
        captured = model
    else:
        captured = capture(model, input_shape, on_progress=lambda what, _: report(what, 0.0))
    works = model_works(captured, sizes, autocast=source.precision in AUTOCAST, on_progress=report)
    kernels = [kernel for work in works[sizes[0]] for kernel in (*work.forward, *work.backward)]
    _check_products(kernels)
    times = _seconds([works[batch] for batch in sizes], source)
    measurements = _measurements(captured, times, sizes)
    report("done", 1.0)
    result = Profile(
        graph=captured.graph,
        batch_sizes=sizes,
        measurements=measurements,
        device=source.device,
        device_name=source.device_name,
        precision=source.precision,
        threads=source.threads,
        provenance="estimated",
        method=source.method(kernels),
        update_per_byte=source.update_per_byte,
        error=source.error,
        date=datetime.date.today().isoformat(),
        versions=package_versions("deeppool", "torch"),
        origin=captured,
    )
    if path is not None:
        serialization.write(result, path)
    return result


def _check_products(kernels: Sequence[Kernel]) -> None:
    """Raises InvalidValueError if products are of numbers whose rate neither data sheets nor calibrations have."""
    wide = sorted({kernel.operator for kernel in kernels if kernel.flops and kernel.element_size > WIDEST})
    if wide:
        raise InvalidValueError(
            f"products of fp64 and of complex numbers cannot be estimated: {', '.join(wide)} (model.float() makes fp32 "
            "of fp64; or measure the model by deeppool profile)"
        )


def _seconds(works: Sequence[Sequence[LayerWork]], source: KernelTimes) -> NDArray[np.float64]:
    """Returns the seconds by batch size, layer, and forward or backward."""
    parts = [kernels for layers in works for work in layers for kernels in (work.forward, work.backward)]
    times = source.seconds([kernel for part in parts for kernel in part])
    ends = np.cumsum([len(part) for part in parts])
    sums = np.array([part.sum() for part in np.split(times, ends[:-1])])
    return sums.reshape(len(works), -1, 2)


def _measurements(
    captured: CapturedModel, times: NDArray[np.float64], sizes: tuple[int, ...]
) -> tuple[Measurement, ...]:
    """Returns the mean times of the layers with the same signature, which may differ in what they convert."""
    alike: dict[str, list[int]] = {}
    for index, layer in enumerate(captured.graph.layers):
        alike.setdefault(layer.signature, []).append(index)
    found = []
    for signature, indices in alike.items():
        mean = times[:, indices].mean(axis=1)
        # At some sizes only: joining what a layer expanded over the samples copies nothing for one of them.
        idle = ~mean.any(axis=1)
        mean[idle, 0] = VIEW * np.array(sizes)[idle]
        forward, backward = (tuple(map(float, part)) for part in mean.T)
        found.append(Measurement(signature, forward, backward, (0.0,) * len(sizes)))
    return tuple(found)
