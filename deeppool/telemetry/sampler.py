"""Sampler: a thread of the launcher's process, never of a rank's, that samples the machine."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import psutil

from deeppool.base.arguments import typed
from deeppool.base.number_checks import positive_number, real_number
from deeppool.device.nvml import Nvml
from deeppool.errors import InvalidValueError
from deeppool.telemetry.cpu_meter import CoreMeter, ProcessMeter
from deeppool.telemetry.gpu_meter import GpuMeter
from deeppool.telemetry.record import Sample, Telemetry

INTERVAL = 0.5
"""Seconds between two samples."""
SHORTEST = 0.05
"""Minimum seconds between two samples: the clocks of cores and processes tick every 10 ms."""
KEPT = 7200
"""Maximum number of samples kept, the newest ones: an hour at two a second."""

_LOG = logging.getLogger(__name__)


class Sampler:
    """Sampler that runs until it is closed.

    with Sampler() as sampler:
        dp.launch(plan, background="resnet18")
    print(sampler.telemetry())
    """

    @typed
    def __init__(self, interval: float = INTERVAL) -> None:
        """Starts the thread.

        Raises:
            InvalidValueError: the interval is too short for a measurement.
        """
        interval = real_number("interval", interval)
        if not interval >= SHORTEST:
            raise InvalidValueError(f"interval must be at least {SHORTEST:g} s, got {interval:g}")
        self._interval = positive_number("interval", interval)
        self._started, self._began = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._watchers: list[Callable[[], None]] = []
        self._closing = threading.Event()
        self._nvml = Nvml()
        # Kept: the library is closed with the sampler.
        self._gpus, self._gpu_problem = self._nvml.names, self._nvml.problem
        self._gpu_meters = [GpuMeter(self._nvml, handle) for handle in self._nvml.handles]
        self._core_meter, self._process_meter = CoreMeter(), ProcessMeter()
        self._thread = threading.Thread(target=self._run, name="deeppool telemetry", daemon=True)
        self._thread.start()

    def telemetry(self) -> Telemetry:
        """Returns the samples so far; callable from any thread, also after :meth:`close`."""
        return Telemetry(
            self._started,
            self._interval,
            self._gpus,
            self._gpu_problem,
            self._core_meter.cores,
            # A copy in one step, which the interpreter's lock makes whole.
            tuple(self._samples.copy()),
        )

    def watch(self, on_sample: Callable[[], None]) -> None:
        """Registers a function to call after every sample, in the thread of the sampler."""
        self._watchers.append(on_sample)

    def close(self) -> None:
        """Stops sampling; may be called repeatedly, and keeps the samples."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        due = time.perf_counter()
        try:
            while True:
                # A late sample does not delay later ones, and missed samples are not made up for.
                due = max(due + self._interval, time.perf_counter())
                if self._closing.wait(due - time.perf_counter()):
                    break
                # A sample that cannot be read, as where this process may open no more files, is left out.
                with suppress(OSError, psutil.Error):
                    self._samples.append(self._sample())
                    self._notify()
        finally:
            for meter in self._gpu_meters:
                meter.close()
            self._nvml.close()

    def _sample(self) -> Sample:
        return Sample(
            time=time.perf_counter() - self._began,
            gpus=tuple(meter.read() for meter in self._gpu_meters),
            cores=self._core_meter.read(),
            memory_available=psutil.virtual_memory().available,
            processes=self._process_meter.read(),
        )

    def _notify(self) -> None:
        for on_sample in list(self._watchers):
            try:
                on_sample()
            except Exception:  # a failing listener does not end sampling
                self._watchers.remove(on_sample)
                _LOG.exception("telemetry is no longer shown")

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
