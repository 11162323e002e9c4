"""The stream of a background job, by the mechanisms by which it shares the device."""

from dataclasses import dataclass

from deeppool.base.sharing import Sharing
from deeppool.device.protocol import Device, Stream
from deeppool.device.sm_share import sm_share


@dataclass(frozen=True, slots=True)
class BackgroundStream:
    """Stream of a background job."""

    stream: Stream
    granted: str | None = None
    """Priority and multiprocessors that a GPU granted; None on a CPU, where the operating system shares the core."""
    problem: str | None = None
    """Reason why a share that was asked for was not granted, or None."""


def background_stream(device: Device, sharing: Sharing) -> BackgroundStream:
    """Creates a background's stream on the selected device."""
    if sharing.share is None:
        stream = device.stream("high" if sharing.priority == "normal" else "low")
        return BackgroundStream(stream, f"stream priority {stream.priority}" if device.asynchronous else None)
    part = sm_share(device, sharing.share)
    granted = f"stream priority {part.stream.priority}, {part}" if device.asynchronous else None
    return BackgroundStream(part.stream, granted, part.problem)
