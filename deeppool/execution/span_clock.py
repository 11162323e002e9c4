"""Times of spans on the clock of ``time.perf_counter``, also where the device computes after its launches."""

import time
from typing import Any

from deeppool.device.protocol import Device


class SpanClock:
    """Takes the host's time, or the device's: then it converts stamps once the device has reached them."""

    def __init__(self, device: Device) -> None:
        """Is not calibrated yet."""
        self._device = device
        self._reference: tuple[Any, float] | None = None
        """A stamp that the device reached when it was made, and the time."""

    def calibrate(self) -> None:
        """Relates the device's clock to the host's; waits for the current stream."""
        if self._device.asynchronous:
            self._device.synchronize_stream()
            self._reference = self._device.stamp(), time.perf_counter()

    def now(self) -> Any:
        """Marks a point of the current stream."""
        if self._reference is None:
            self.calibrate()
        return self._device.stamp()

    def seconds(self, mark: Any) -> float:
        """Returns the time of a mark; the device has reached it."""
        if self._reference is None:
            return float(mark)
        stamp, at = self._reference
        return at + self._device.seconds(stamp, mark)
