"""A share of a GPU's multiprocessors for one job, by a green context: its work stays on them, others may use them too.

The foreground's work is in the primary context and runs on all multiprocessors, so this bounds a background without
taking anything from the foreground. Kernels of a graph keep the multiprocessors of the stream that captured them: a
background captures a set of graphs for each share. Not tested on a GPU.
"""

from dataclasses import dataclass
from typing import Any

from deeppool.device.protocol import Device, Stream
from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class SmShare:
    """Share of a GPU's multiprocessors as requested, or the fallback."""

    stream: Stream
    """Stream on the multiprocessors, at the lowest priority; on all of them if there is a problem."""
    multiprocessors: int | None
    """Number of multiprocessors requested; the driver rounds up to its groups, of 8 on Hopper. None means all."""
    problem: str | None
    """Reason why the stream has all multiprocessors, or None."""
    context: Any = None
    """Green context, which must live as long as the stream."""


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
    if device.kind != "cuda":
        return SmShare(device.stream("low"), None, f"device {device.kind} has no multiprocessors")
    import torch
    from torch.cuda.green_contexts import SUPPORTED, GreenContext

    from deeppool.device.cuda import CudaDevice, CudaStream

    assert isinstance(device, CudaDevice)
    if not SUPPORTED:
        return SmShare(device.stream("low"), None, f"this torch ({torch.__version__}) is built without green contexts")
    index = torch.cuda.current_device()
    count = max(1, round(share * torch.cuda.get_device_properties(index).multi_processor_count))
    try:
        # torch warns, and makes one, where there is no primary context yet.
        torch.cuda.synchronize(index)
        context: Any = GreenContext.create(num_sms=count, device_id=index)
        handle = context.Stream()
    except RuntimeError as error:  # an old driver, or one that refuses: under MIG, for example
        return SmShare(device.stream("low"), None, str(error).splitlines()[0])
    return SmShare(CudaStream(device, "low", handle), count, None, context)
