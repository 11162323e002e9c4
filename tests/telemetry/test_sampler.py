"""The thread that samples, and the record it leaves. The GPU's part is a made-up library: it tests the parsing only."""

import ctypes
import itertools
import logging
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynvml
import pytest

import deeppool as dp
from deeppool.device.cpu import usable_cores
from deeppool.device.nvml import Nvml
from deeppool.errors import InvalidValueError
from deeppool.telemetry.gpu_meter import GpuMeter
from deeppool.telemetry.record import GpuSample, Sample, Telemetry
from deeppool.telemetry.sampler import Sampler

PATIENCE = 300.0


class Seen:
    """Waits for samples."""

    def __init__(self, sampler: Sampler) -> None:
        self.new = threading.Semaphore(0)
        sampler.watch(self.new.release)

    def wait(self, samples: int) -> None:
        for _ in range(samples):
            assert self.new.acquire(timeout=PATIENCE)


def test_samples_follow_each_other_until_it_is_closed_and_stay() -> None:
    with Sampler(0.05) as sampler:
        Seen(sampler).wait(3)
    found = sampler.telemetry()
    assert len(found.samples) >= 3
    assert sampler.telemetry() == found, "it went on"
    times = [sample.time for sample in found.samples]
    assert all(before < after for before, after in itertools.pairwise(times))
    assert found.cores == tuple(usable_cores())
    assert all(len(sample.cores) == len(found.cores) for sample in found.samples)
    assert all(sample.memory_available > 0 and sample.processes for sample in found.samples)
    sampler.close()


def test_without_a_driver_the_record_says_so() -> None:
    with Nvml() as nvml:
        if nvml.problem is None:
            pytest.skip("this machine has an NVIDIA driver")
    with Sampler(0.05) as sampler:
        Seen(sampler).wait(1)
    found = sampler.telemetry()
    assert found.gpus == ()
    assert found.samples[0].gpus == ()
    assert "no NVIDIA driver" in str(found)


def test_a_view_that_fails_ends_no_sampling(caplog: pytest.LogCaptureFixture) -> None:
    with Sampler(0.05) as sampler:
        seen = Seen(sampler)
        sampler.watch(lambda: 1 / 0)
        with caplog.at_level(logging.ERROR):
            seen.wait(4)
    assert [record.getMessage() for record in caplog.records] == ["telemetry is no longer shown"]


@pytest.mark.parametrize("interval", [0.0, 0.01, float("nan")])
def test_an_interval_shorter_than_the_clocks_is_refused(interval: float) -> None:
    with pytest.raises(InvalidValueError, match=r"interval must be at least 0\.05 s, got"):
        Sampler(interval)


def test_an_interval_is_a_finite_number_also_numpys() -> None:
    """A thread that cannot wait so long would end without a word."""
    with pytest.raises(InvalidValueError, match="interval must be positive and finite, got inf"):
        Sampler(float("inf"))
    with Sampler(np.float32(0.05)) as sampler:
        Seen(sampler).wait(2)
    assert sampler.telemetry().interval == pytest.approx(0.05)


def gpu(memory: int | None, utilisation: float, energy: float | None) -> GpuSample:
    return GpuSample(memory, utilisation, None, 100.0, energy)


def record() -> Telemetry:
    samples = (
        Sample(0.5, (gpu(10, 0.5, 0.0),), (0.25, 1.0), 7, ()),
        Sample(1.0, (gpu(30, 1.0, 50.0),), (0.75, 0.0), 6, ()),
        Sample(1.5, (gpu(None, 0.0, None),), (0.5, 0.5), 5, ()),
    )
    return Telemetry("2026-01-01T00:00:00+00:00", 0.5, ("H200",), None, (0, 3), samples)


def test_the_summary_has_means_and_peaks_of_what_is_known() -> None:
    first, *cores = record().summary()
    assert (first.name, first.utilisation, first.peak_memory, first.energy) == ("GPU 0 (H200)", 0.5, 30, 50.0)
    assert first.sm_activity is None
    assert [(core.name, core.utilisation) for core in cores] == [("core 0", 0.5), ("core 3", 0.5)]
    assert "busy 50 %, at most 30 B, 100 W, 50 J" in str(record())


def test_a_record_without_samples_says_that_nothing_is_known() -> None:
    empty = Telemetry("", 0.5, ("H200",), None, (0,), ())
    assert str(empty).splitlines() == ["0 samples over 0 s", "GPU 0 (H200): nothing known", "core 0: nothing known"]


def test_a_record_is_a_file_and_back(tmp_path: Path) -> None:
    assert dp.load(dp.save(record(), tmp_path / "telemetry.json")) == record()


# -- a made-up driver: parsing only -----------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """pynvml's own structures and errors, over functions that answer what this dictionary holds."""
    said = {"energy": iter([5_000, 7_500, 9_000]), "gpm": 1, "sm": 37.5, "between": [], "counters": 0, "freed": 0}

    def metrics(request: Any) -> Any:
        assert (request.version, request.numMetrics) == (pynvml.NVML_GPM_METRICS_GET_VERSION, 1)
        assert request.metrics[0].metricId == pynvml.NVML_GPM_METRIC_SM_UTIL
        request.metrics[0].value = said["sm"]
        pair = (request.sample1, request.sample2)
        said["between"].append([ctypes.cast(sample, ctypes.c_void_p).value for sample in pair])
        return request

    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def count(name: str) -> Any:
        def counted(*_: Any) -> Any:
            said[name] += 1
            return pynvml.c_nvmlGpmSample_t()

        return counted

    addresses = itertools.count(start=1)

    def allocate() -> Any:
        return ctypes.cast(ctypes.c_void_p(next(addresses)), pynvml.c_nvmlGpmSample_t)

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=2**30),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=80),
        "nvmlDeviceGetPowerUsage": refuse,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: next(said["energy"]),
        "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=said["gpm"]),
        "nvmlGpmSampleAlloc": allocate,
        "nvmlGpmSampleGet": count("counters"),
        "nvmlGpmMetricsGet": metrics,
        "nvmlGpmSampleFree": count("freed"),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return said


def test_readings_of_a_gpu_have_our_units_and_what_it_refuses_is_unknown(driver: dict[str, Any]) -> None:
    with Nvml() as nvml:
        assert nvml.names == ("NVIDIA H200",)
        meter = GpuMeter(nvml, nvml.handles[0])
        assert meter.read() == GpuSample(memory=2**30, utilisation=0.8, sm_activity=0.375, power=None, energy=2.5)
        assert meter.read().energy == 4.0
        meter.close()
        meter.close()
    assert driver["between"] == [[1, 2], [2, 1]], "since the last reading"
    assert (driver["counters"], driver["freed"]) == (3, 2)


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_GPU_IS_LOST])
def test_a_gpu_that_is_another_users_or_lost_hides_no_other(
    driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def handle(index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(error)
        return index

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    with Nvml() as nvml:
        assert (nvml.handles, nvml.problem) == ((1,), None)


def test_a_gpu_without_performance_monitors_has_no_activity(driver: dict[str, Any]) -> None:
    driver["gpm"] = 0
    with Nvml() as nvml:
        assert GpuMeter(nvml, nvml.handles[0]).read().sm_activity is None
    assert driver["counters"] == 0


def test_a_driver_that_fails_is_no_end_of_what_asks_it(driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", refuse)
    monkeypatch.setattr(pynvml, "nvmlShutdown", refuse)
    with Nvml() as nvml:
        assert nvml.names == ("unknown GPU",)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", refuse)
    with Nvml() as nvml:
        assert (nvml.names, nvml.problem) == ((), "the NVIDIA driver shows no GPU")


WITHOUT_FILES = """
import os, threading
from deeppool.telemetry.sampler import Sampler
with Sampler(0.05) as sampler:
    sampled = threading.Semaphore(0)
    sampler.watch(sampled.release)
    sampled.acquire()
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    # A sample may be under way.
    missed = [sampled.acquire(timeout=0.5) for _ in range(3)]
    for file in held:
        os.close(file)
    print(missed[-1], sampled.acquire(timeout=60))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what is sampled is read from files on Linux only")
def test_sampling_goes_on_after_a_time_without_free_files() -> None:
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", WITHOUT_FILES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (done.stdout, done.stderr) == ("False True\n", "")
