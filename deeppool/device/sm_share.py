"""A share of a GPU's multiprocessors for one job, by a green context: its work stays on them, others may use them too.

The foreground's work is in the primary context and runs on all multiprocessors, so this bounds a background without
taking anything from the foreground. Kernels of a graph keep the multiprocessors of the stream that captured them: a
background captures a set of graphs for each share. Drivers grant multiprocessors in groups, and may grant fewer than
were asked for: what was granted is read back from the driver.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deeppool.device.driver import granted_multiprocessors
from deeppool.device.kinds import emulated_sheet
from deeppool.device.protocol import Device, Stream
from deeppool.errors import InvalidValueError

if TYPE_CHECKING:
    import torch

_CONTEXTS: list[Any] = []
"""All green contexts of the process: torch ends it when memory is freed that belongs to one that is gone."""


@dataclass(frozen=True, slots=True)
class SmShare:
    """Share of a GPU's multiprocessors as granted, or the fallback."""

    stream: Stream
    """Stream on the multiprocessors, at the lowest priority; on all of them if there is a problem."""
    multiprocessors: int | None
    """Number of multiprocessors asked for; None: all, as there is a problem."""
    granted: int | None
    """Number that was granted; None: all, or the driver does not say."""
    problem: str | None
    """Reason why the stream has all multiprocessors, or None."""

    def __str__(self) -> str:
        if self.problem is not None:
            return f"on all multiprocessors ({self.problem})"
        if self.granted is None:
            return (
                f"on {self.multiprocessors} multiprocessors (asked for; the driver does not say how many were granted)"
            )
        return f"on {self.granted} multiprocessors (granted; {self.multiprocessors} were asked for)"


def sm_share(device: Device, share: float) -> SmShare:
    """Creates a stream on a share of the selected GPU's multiprocessors.

    Raises:
        InvalidValueError: the share is not inside (0, 1).
    """
    if not 0 < share < 1:
        raise InvalidValueError(
            f"share must be more than 0 and less than 1, got {share:g}: it is the part of the GPU's multiprocessors "
            "that the job gets, for example 0.2 for 20 %"
        )
    sheet = emulated_sheet(device.kind)
    if sheet is not None:
        from deeppool.device.emulated.device import EmulatedDevice

        assert isinstance(device, EmulatedDevice)
        asked = max(1, round(share * sheet.multiprocessors))
        granted = sheet.granted(asked)
        return SmShare(device.partial_stream(granted), asked, granted, None)
    if device.kind != "cuda":
        return _all_of(device, f"device {device.kind} has no multiprocessors")
    import torch
    from torch.cuda.green_contexts import GreenContext

    from deeppool.device.cuda import CudaDevice, CudaStream

    assert isinstance(device, CudaDevice)
    index = torch.cuda.current_device()
    count = max(1, round(share * torch.cuda.get_device_properties(index).multi_processor_count))
    try:
        # torch warns, and makes one, where there is no primary context yet.
        torch.cuda.synchronize(index)
        context: Any = GreenContext.create(num_sms=count, device_id=index)
        _CONTEXTS.append(context)
        handle = context.Stream()
        _check_events(handle)
    except RuntimeError as error:  # torch is built without them, the driver is old, or refuses: under MIG, for example
        return _all_of(device, str(error).splitlines()[0])
    return SmShare(CudaStream(device, "low", handle), count, granted_multiprocessors(handle.cuda_stream), None)


def _all_of(device: Device, problem: str) -> SmShare:
    return SmShare(device.stream("low"), None, None, problem)


def _check_events(handle: "torch.cuda.Stream") -> None:
    """Tries what a background needs: events of torch, which are of the primary context, on the share's stream.

    A driver may refuse events of another context (``cuEventRecord``: "must be from the same context"); then there is
    no pacing, no time of a piece and no order between the two jobs' streams.

    Raises:
        RuntimeError: it refuses.
    """
    import torch

    surrounding = torch.cuda.current_stream()
    first, second, third = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    first.record(surrounding)
    handle.wait_event(first)
    second.record(handle)
    surrounding.wait_event(second)
    third.record(surrounding)
    third.synchronize()
    if not 0 <= first.elapsed_time(second) <= first.elapsed_time(third):
        raise RuntimeError("events on a green context's stream have wrong times on this driver")
