"""What a GPU can do for two jobs: the answers without one, and on one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

import deeppool as dp
from deeppool.device.abilities import GpuAbilities, gpu_abilities, mps
from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import cuda_problem
from deeppool.device.find import find_device
from deeppool.device.nvml import Nvml
from deeppool.device.sm_share import sm_share
from deeppool.errors import InvalidValueError


def test_on_a_cpu_a_share_of_multiprocessors_is_a_stream_and_a_reason() -> None:
    found = sm_share(CpuDevice(), 0.5)
    assert found.problem == "device cpu has no multiprocessors"
    assert found.stream.launch(lambda: None).done()


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_outside_its_bounds_is_refused(share: float) -> None:
    with pytest.raises(InvalidValueError, match=r"share must be more than 0 and less than 1, got .*0.2 for 20 %"):
        sm_share(CpuDevice(), share)


def test_mps_is_found_by_its_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert mps() == f"not running (there is no {tmp_path}/control)"
    (tmp_path / "control").touch()
    assert mps() == f"running ({tmp_path}/control)"


def test_without_a_driver_there_are_no_abilities_and_a_reason() -> None:
    with Nvml() as nvml:
        if nvml.problem is None:
            pytest.skip("this machine has an NVIDIA driver")
        assert gpu_abilities(nvml) == ()
    found = dp.environment()
    assert (found.gpus, found.gpu_abilities, found.mps) == ((), (), None)
    assert "gpus                 none: no NVIDIA driver" in str(found)


def test_what_a_driver_answers_is_told_also_where_torch_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up driver: tests the parsing only."""
    if cuda_problem() is None:
        pytest.skip("torch sees a GPU here")

    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: f"GPU {handle}",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=handle),
        "nvmlDeviceGetMigMode": lambda handle: refuse() if handle else [1, 1],
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    why = f"no: {cuda_problem()}"
    found = dp.environment()
    assert found.gpu_abilities == (
        GpuAbilities("GPU 0", why, why, why, "no: this GPU or its driver has none", "on"),
        GpuAbilities("GPU 1", why, why, why, "yes", "no: this GPU has none"),
    )
    assert found.mps is not None
    assert f"GPU 1: CUDA graphs, stream priorities, green contexts {why}; GPM yes; MIG no: this GPU" in str(found)


@pytest.mark.gpu
@pytest.mark.skipif(cuda_problem() is not None, reason=f"needs a CUDA device: {cuda_problem()}")
def test_every_gpu_of_the_machine_is_described_and_a_share_computes_the_same() -> None:
    found = dp.environment()
    assert len(found.gpu_abilities) == len(found.gpus) > 0
    assert "yes" in {gpu.cuda_graphs for gpu in found.gpu_abilities}
    device = find_device("cuda")
    share = sm_share(device, 0.25)
    a = torch.randn(2048, 2048, device="cuda")
    with share.stream.current():
        product = a @ a
    torch.testing.assert_close(product, a @ a)
    with share.stream.current():
        (graph,) = device.repeatable(lambda: torch.matmul(a, a, out=product))
    product.zero_()
    launch = share.stream.launch(graph)
    device.synchronize()
    assert launch.done()
    torch.testing.assert_close(product, a @ a)
