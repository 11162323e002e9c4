"""Pairs of kernels on a GPU: two streams of one process, of equal priority or the background's lower.

On an emulated GPU kernels compute no values, and take the times of a data sheet.
"""

from collections import deque
from collections.abc import Callable, Sequence

from deeppool.collocation.interference.cpu_bench import select_arrangements
from deeppool.collocation.interference.synthetic_kernels import KernelSpec, buffers, calibrate, launcher
from deeppool.device.kinds import emulated_sheet
from deeppool.device.protocol import Device, Launch, Stream

QUEUED = 8
"""Launches of each job that are queued: enough to keep the device busy, few enough to end soon."""
POLL_SECONDS = 2e-5
"""Interval between two looks at what the device has done: a queue of the shortest kernels lasts eight times as long."""


class StreamJob:
    """One kernel after another on one stream, a few launches ahead of the device."""

    def __init__(self, run: Callable[[], object], stream: Stream) -> None:
        """Launches nothing yet."""
        self._run, self._stream = run, stream
        self._queued: deque[Launch] = deque()
        self.count = 0

    def feed(self) -> None:
        """Counts the launches that have ended, and replaces them."""
        while self._queued and self._queued[0].done():
            self._queued.popleft()
            self.count += 1
        while len(self._queued) < QUEUED:
            self._queued.append(self._stream.launch(self._launch))

    def _launch(self) -> None:
        self._run()


class StreamBench:
    """Two sets of kernels, and a stream for each priority."""

    def __init__(self, device: Device, kinds: Sequence[KernelSpec], arrangements: Sequence[str] | None = None) -> None:
        """Makes the kernels.

        Args:
            device: device that runs its work behind its launches.
            kinds: specifications of the kernels.
            arrangements: any of ``normal`` and ``lowest``; both unless given.

        Raises:
            InvalidValueError: another arrangement.
        """
        known = ("normal", "lowest")
        self.arrangements = select_arrangements(known if arrangements is None else arrangements, known)
        self._device = device
        self._alone: dict[int, float] | None = {} if emulated_sheet(device.kind) is not None else None
        """Kernels per second of each kernel measured so far, where time is virtual: again they are nearly the same."""
        self._streams = {
            "foreground": device.stream("high"),
            "normal": device.stream("high"),
            "lowest": device.stream("low"),
        }
        # Each job has buffers of its own, and both the same kernels.
        ours, theirs = buffers(device), buffers(device)
        sizes = [calibrate(kind, ours, device) for kind in kinds]
        self._foreground = [launcher(kind, ours, size) for kind, size in zip(kinds, sizes, strict=True)]
        self._background = [launcher(kind, theirs, size) for kind, size in zip(kinds, sizes, strict=True)]
        device.synchronize()

    def alone(self, kernel: int, seconds: float) -> float:
        """Returns the kernels per second."""
        if self._alone is not None and kernel in self._alone:
            return self._alone[kernel]
        rate = self._measure([StreamJob(self._foreground[kernel], self._streams["foreground"])], seconds)[0]
        if self._alone is not None:
            self._alone[kernel] = rate
        return rate

    def together(self, arrangement: str, foreground: int, background: int, seconds: float) -> tuple[float, float]:
        """Returns the kernels per second of both."""
        jobs = [
            StreamJob(self._foreground[foreground], self._streams["foreground"]),
            StreamJob(self._background[background], self._streams[arrangement]),
        ]
        foreground_rate, background_rate = self._measure(jobs, seconds)
        return foreground_rate, background_rate

    def _measure(self, jobs: list[StreamJob], seconds: float) -> list[float]:
        # What is queued at first and at the end is left out.
        self._feed(jobs, seconds / 10)
        counted = [job.count for job in jobs]
        elapsed = self._feed(jobs, seconds)
        rates = [(job.count - before) / elapsed for job, before in zip(jobs, counted, strict=True)]
        self._device.synchronize()
        return rates

    def _feed(self, jobs: list[StreamJob], seconds: float) -> float:
        clock = self._device.clock
        started = now = clock.now()
        while now - started < seconds:
            for job in jobs:
                job.feed()
            clock.sleep(POLL_SECONDS)
            now = clock.now()
        return now - started

    def __enter__(self) -> "StreamBench":
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: every measurement waits for what it launched."""
