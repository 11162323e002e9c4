"""``dp.calibrate``: measured costs of kernels on this machine's device, from which any model is estimated."""

import datetime
import statistics
from collections.abc import Sequence
from pathlib import Path

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.base.run_registry import registered
from deeppool.device.calibration import Calibration
from deeppool.device.environment import package_versions
from deeppool.device.kinds import DeviceName
from deeppool.device.protocol import AUTOCAST, Precision
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.job import Progress
from deeppool.profiling.calibrate.fit import MeasuredPart, estimated_seconds, fit
from deeppool.profiling.calibrate.networks import sample_networks
from deeppool.profiling.estimate.layer_work import model_works
from deeppool.profiling.measure.profile import profile
from deeppool.profiling.table import Profile

SECONDS = 1.5
"""Default limit of the measurement of one network at one batch size."""


@interruptible
@typed
@registered
def calibrate(
    *,
    device: DeviceName = "auto",
    precision: Precision = "fp32",
    threads: int = 1,
    seconds: float = SECONDS,
    output: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Calibration:
    """Measures the layers of a dozen networks and fits the costs of their kernels; about a minute on a CPU.

    :func:`deeppool.estimate` then takes the calibration in place of a GPU's data sheet. The networks
    (:mod:`deeppool.profiling.calibrate.networks`) are no published ones: their sizes are drawn.

    Args:
        device: as in :func:`deeppool.profile`.
        precision: as in :func:`deeppool.profile`.
        threads: as in :func:`deeppool.profile`.
        seconds: time limit for each network and batch size.
        output: file to save the calibration to.
        on_progress: see :data:`deeppool.job.Progress`.

    Returns:
        A calibration that states its own error: each network's iteration time as estimated from all the others.

    Raises:
        InvalidValueError: invalid device, precision, threads or seconds.
        ProfileError: a network does not fit into memory.
        DocumentError: ``output`` cannot be written.
    """
    path = serialization.check_writable(output) if output is not None else None
    report = on_progress or (lambda what, share: None)
    networks = list(sample_networks())
    parts: list[list[MeasuredPart]] = []
    profiles = []
    for index, network in enumerate(networks):
        report(f"network {index + 1} of {len(networks)}", index / len(networks))
        captured = capture(network.model, network.input_shape)
        profiles.append(
            profile(
                captured,
                device=device,
                batch_sizes=network.batch_sizes,
                precision=precision,
                threads=threads,
                seconds=seconds,
            )
        )
        parts.append(measured_parts(captured, profiles[-1]))
    report("fitting", 1.0)
    found = calibration_of(profiles, parts)
    if path is not None:
        serialization.write(found, path)
    return found


def calibration_of(profiles: Sequence[Profile], parts: Sequence[Sequence[MeasuredPart]]) -> Calibration:
    """Returns the calibration by the measured layers of each network."""
    errors = []
    for held, part in enumerate(parts):
        costs = fit([layer for index, others in enumerate(parts) for layer in others if index != held])
        errors.append(abs(estimated_seconds(costs, part) / sum(layer.seconds for layer in part) - 1))
    # The update of a small network is mostly launches.
    largest = max(profiles, key=lambda found: sum(layer.parameter_bytes for layer in found.graph.layers))
    return Calibration(
        device=profiles[0].device,
        device_name=profiles[0].device_name,
        precision=profiles[0].precision,
        threads=profiles[0].threads,
        costs=fit([layer for part in parts for layer in part]),
        update_per_byte=largest.update_seconds_per_byte,
        error=statistics.median(errors),
        networks=len(parts),
        date=datetime.date.today().isoformat(),
        versions=package_versions("deeppool", "torch"),
    )


def measured_parts(captured: CapturedModel, measured: Profile) -> list[MeasuredPart]:
    """Returns the kernels and the measured seconds of the forward and backward of each layer that launches any."""
    works = model_works(captured, measured.batch_sizes, autocast=measured.precision in AUTOCAST)
    found = []
    for batch in measured.batch_sizes:
        for layer, work in enumerate(works[batch]):
            times = measured.time(layer, batch)
            found += [MeasuredPart(work.forward, times.forward), MeasuredPart(work.backward, times.backward)]
    return [layer for layer in found if layer.kernels]
