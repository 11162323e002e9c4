"""Timed iterations and memory use of a model on a device, at one batch size after another."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Device, Precision
from deeppool.errors import ProfileError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.profiling.measure.concurrent_ranks import ConcurrentRanks
from deeppool.profiling.measure.iteration import Iteration, TimestampLog, copy_weights, example_data
from deeppool.profiling.measure.sampling import LONG_ITERATION, is_sufficient, minimum_seconds, progress
from deeppool.profiling.measure.stamp_cost import stamp_seconds
from deeppool.profiling.measure.update import UpdateBench
from deeppool.profiling.store import MeasurementLog, Runs, Times


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory use of one iteration in bytes, where the device has memory statistics."""

    peak: int | None = None
    layers: tuple[int, ...] = ()
    """Peak bytes that the forward or backward of each layer allocated."""


class Bench:
    """Measures a model on a device at any batch size."""

    def __init__(
        self,
        captured: CapturedModel,
        device: Device,
        precision: Precision,
        graphs: bool,
        concurrent_ranks: ConcurrentRanks | None = None,
    ) -> None:
        """Copies the weights to the device.

        Args:
            captured: the model.
            device: device that runs it.
            precision: precision of its arithmetic.
            graphs: whether iterations are captured as CUDA graphs.
            concurrent_ranks: processes on other cores that run every iteration at the same time; None: runs alone.
        """
        self._captured, self._device, self._precision, self._graphs = captured, device, precision, graphs
        self._company = concurrent_ranks
        if device.memory_use() is not None:
            # Programs of torch.fx are cycles, which hold the memory of earlier profiles.
            gc.collect()
        self._held = (device.memory_use() or (0, 0))[0]
        """Bytes that others use on the device."""
        # Emulated devices compute their kernels on the CPU, or in virtual time: a stamp delays none of them.
        self._stamp = stamp_seconds(device) if graphs and not find_kind(device.kind).emulated else 0.0
        weights = copy_weights(captured, device)
        self._iterations = {stamped: Iteration(captured, weights, stamped=stamped) for stamped in (True, False)}

    def measure(self, batch: int, runs: Runs, log: MeasurementLog, seconds: float) -> Iterator[float]:
        """Adds iterations to the log until they suffice; yields the estimated completed fraction."""
        yield 0.0
        least = minimum_seconds(self._device.kind)
        if is_sufficient(*runs.seconds, seconds, least):
            return
        with self._errors(batch):
            once = self._prepare(batch)
            first = once(True)
        if sum(map(sum, first)) >= LONG_ITERATION:
            log.add(batch, True, first)
        while not is_sufficient(*runs.seconds, seconds, least):
            yield progress(*runs.seconds, seconds)
            stamped = len(runs.layered) <= len(runs.whole)
            with self._errors(batch):
                times = once(stamped)
            log.add(batch, stamped, times)

    def _prepare(self, batch: int) -> Callable[[bool], Times]:
        """Returns a function that runs an iteration, stamped or not, and returns its seconds per layer or in all."""
        kinds = (True, False)
        data = example_data(self._captured, batch, self._device)
        logs = {stamped: TimestampLog(self._device.stamp) for stamped in kinds}
        works: list[Callable[[], None]] = [
            partial(self._iterations[x].run, data, logs[x], self._precision) for x in kinds
        ]
        runs = dict(zip(kinds, self._device.repeatable(*works) if self._graphs else works, strict=True))

        def once(stamped: bool) -> Times:
            self._device.synchronize()
            with nullcontext() if self._company is None else self._company.iteration(batch):
                runs[stamped]()
                self._device.synchronize()
            times = [[0.0, 0.0] for _ in self._captured.nodes]
            before = logs[stamped].start
            for direction, layer, stamp in logs[stamped].marks:
                seconds = self._device.seconds(before, stamp) - self._stamp
                times[layer][direction == "backward"] += max(0.0, seconds)
                before = stamp
            if not stamped:
                return ((sum(t[0] for t in times), sum(t[1] for t in times)),)
            return tuple((forward, backward) for forward, backward in times)

        return once

    def memory(self, batch: int) -> DeviceMemory:
        """Measures one more iteration, without graphs, whose memory outlives their replay."""
        if self._device.memory_use() is None:
            return DeviceMemory()
        log = TimestampLog(self._device.memory_use)
        with self._errors(batch):
            self._iterations[True].run(example_data(self._captured, batch, self._device), log, self._precision)
        layers = [0] * len(self._captured.nodes)
        held, highest = log.start
        for _, layer, (now, peak) in log.marks:
            layers[layer] = max(layers[layer], peak - held)
            held, highest = now, max(highest, peak)
        return DeviceMemory(highest - self._held, tuple(layers))

    def update_per_byte(self, batch: int) -> float:
        """Measures the optimizer's update, after an iteration without graphs; seconds per byte of parameters."""
        iteration = self._iterations[False]
        with self._errors(batch), nullcontext() if self._company is None else self._company.iteration(batch):
            data = example_data(self._captured, batch, self._device)
            iteration.run(data, TimestampLog(self._device.stamp), self._precision)
        concurrent = nullcontext if self._company is None else self._company.update
        return UpdateBench(iteration.parameters, self._device, concurrent).seconds_per_byte()

    @contextmanager
    def _errors(self, batch: int) -> Iterator[None]:
        """Converts an error of the model to a ProfileError that names the layer."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            graph = self._captured.graph
            layer = self._iterations[True].failed_layer()
            where = graph.model if layer is None else f"layer '{graph.layers[layer].name}' of {graph.model}"
            # A constant such as -1e9 is beyond fp16.
            other = "" if self._precision == "fp32" else f", or another precision than {self._precision}"
            why = str(error).splitlines()[0]
            hint = f"try other --batch-sizes{other}"
            if "dtype" in why and self._precision == "fp32":
                hint = "inputs and parameters must have one dtype: give capture an input_dtype, or the model in float()"
            raise ProfileError(f"{where} cannot run at batch {batch}: {why} ({hint})") from error
