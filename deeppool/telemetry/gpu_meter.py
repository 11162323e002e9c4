"""Meter of one GPU, through the driver's management library. Not tested on a GPU."""

from typing import Any

from deeppool.device.nvml import Nvml
from deeppool.telemetry.record import GpuSample


class GpuMeter:
    """Meter of one GPU. Shares of multiprocessors come from GPM, the performance monitors of Hopper and later."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        """Takes the first reading, the reference of later ones."""
        self._nvml, self._handle = nvml, handle
        self._first_energy = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        self._before: Any = None
        self._now: Any = None
        support = nvml.ask("nvmlGpmQueryDeviceSupport", handle)
        if support is not None and support.isSupportedDevice:
            self._before, self._now = nvml.ask("nvmlGpmSampleAlloc"), nvml.ask("nvmlGpmSampleAlloc")
            nvml.ask("nvmlGpmSampleGet", handle, self._before)

    def read(self) -> GpuSample:
        """Returns a sample of the GPU."""
        memory = self._nvml.ask("nvmlDeviceGetMemoryInfo", self._handle)
        rates = self._nvml.ask("nvmlDeviceGetUtilizationRates", self._handle)
        milliwatts = self._nvml.ask("nvmlDeviceGetPowerUsage", self._handle)
        millijoules = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", self._handle)
        known = millijoules is not None and self._first_energy is not None
        return GpuSample(
            memory=None if memory is None else int(memory.used),
            utilisation=None if rates is None else rates.gpu / 100,
            sm_activity=self._sm_activity(),
            power=None if milliwatts is None else milliwatts / 1e3,
            energy=(millijoules - self._first_energy) / 1e3 if known else None,
        )

    def _sm_activity(self) -> float | None:
        """Returns the share of busy multiprocessors since the last reading of the monitors."""
        if self._before is None or self._nvml.ask("nvmlGpmSampleGet", self._handle, self._now) is None:
            return None
        api = self._nvml.api
        request = api.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = api.NVML_GPM_METRICS_GET_VERSION, 1
        request.sample1, request.sample2 = self._before, self._now
        request.metrics[0].metricId = api.NVML_GPM_METRIC_SM_UTIL
        answer = self._nvml.ask("nvmlGpmMetricsGet", request)
        self._before, self._now = self._now, self._before
        if answer is None or answer.metrics[0].nvmlReturn != api.NVML_SUCCESS:
            return None
        return float(answer.metrics[0].value) / 100

    def close(self) -> None:
        """Frees the memory of the monitors."""
        for sample in (self._before, self._now):
            if sample is not None:
                self._nvml.ask("nvmlGpmSampleFree", sample)
        self._before = self._now = None
