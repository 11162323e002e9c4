"""What a GPU can do for two jobs: the answers without one, and on one."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pynvml
import pytest
import torch
from torch.cuda import green_contexts

import deeppool as dp
from deeppool.base.sharing import Sharing
from deeppool.device.abilities import GpuAbilities, gpu_abilities, mps
from deeppool.device.background_stream import background_stream
from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import CudaDevice, cuda_problem
from deeppool.device.driver import granted_multiprocessors
from deeppool.device.find import find_device
from deeppool.device.nvml import Nvml
from deeppool.device.sm_share import sm_share
from deeppool.errors import InvalidValueError


def test_on_a_cpu_a_share_of_multiprocessors_is_a_stream_and_a_reason() -> None:
    found = sm_share(CpuDevice(), 0.5)
    assert found.problem == "device cpu has no multiprocessors"
    assert found.stream.launch(lambda: None).done()


MULTIPROCESSORS, ASKED, GRANTED = 132, 33, 32
STREAM, CONTEXT = 0x5000, 0x9000


class Driver:
    """The functions of libcuda that tell what was granted, for one stream of a green context."""

    def __init__(self, granted: int, problem: int = 0) -> None:
        self.granted, self.problem = granted, problem

    def cuStreamGetGreenCtx(self, stream: ctypes.c_void_p, context: Any) -> int:  # noqa: N802  # the driver's
        ctypes.cast(context, ctypes.POINTER(ctypes.c_void_p))[0] = CONTEXT if stream.value == STREAM else None
        return 0

    def cuGreenCtxGetDevResource(self, context: ctypes.c_void_p, resource: Any, kind: int) -> int:  # noqa: N802
        assert (context.value, kind) == (CONTEXT, 1)
        # CUdevResource of cuda.h: the type, padding up to byte 96, and a union that begins with sm.smCount.
        ctypes.cast(resource, ctypes.POINTER(ctypes.c_uint))[96 // 4] = self.granted
        return self.problem


def test_what_the_driver_granted_is_read_back() -> None:
    assert granted_multiprocessors(STREAM, Driver(GRANTED)) == GRANTED
    assert granted_multiprocessors(STREAM + 1, Driver(GRANTED)) is None, "a stream of no green context"
    assert granted_multiprocessors(STREAM, Driver(GRANTED, problem=801)) is None
    assert granted_multiprocessors(STREAM, object()) is None, "an older driver"


class Event:
    """An event of torch on a device whose streams pass at once; ``refuses`` says why a stream does not take it."""

    refuses: ClassVar[dict[object, str]] = {}
    now = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing

    def record(self, stream: object) -> None:
        if stream in Event.refuses:
            raise RuntimeError(Event.refuses[stream])
        Event.now += 1.0
        self.at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "Event") -> float:
        assert self.timed
        return other.at - self.at


@pytest.fixture
def green(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch on a GPU with green contexts, which asks for multiprocessors and keeps what comes."""
    own = type("GreenStream", (), {"cuda_stream": STREAM, "wait_event": lambda self, event: None})()
    primary = type("PrimaryStream", (), {"wait_event": lambda self, event: None, "priority": 0})()
    asked: list[int] = []

    def create(*, num_sms: int, device_id: int) -> Any:
        asked.append(num_sms)
        return SimpleNamespace(Stream=lambda: own)

    monkeypatch.setattr(green_contexts, "GreenContext", SimpleNamespace(create=create))
    properties = SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    for name, found in {
        "Event": Event,
        "current_device": lambda: 0,
        "synchronize": lambda index: None,
        "get_device_properties": lambda index: properties,
        "current_stream": lambda: primary,
    }.items():
        monkeypatch.setattr(torch.cuda, name, found)
    monkeypatch.setattr(CudaDevice, "stream", lambda device, priority: SimpleNamespace(priority=priority))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(GRANTED))
    monkeypatch.setattr(Event, "refuses", {})
    return SimpleNamespace(device=CudaDevice.__new__(CudaDevice), stream=own, asked=asked)


def test_a_share_says_how_many_multiprocessors_were_granted(green: Any) -> None:
    found = sm_share(green.device, 0.25)
    assert green.asked == [ASKED]
    assert (found.multiprocessors, found.granted, found.problem) == (ASKED, GRANTED, None)
    assert background_stream(green.device, Sharing(share=0.25)).granted == (
        "stream priority low, on 32 multiprocessors (granted; 33 were asked for)"
    )


def test_a_driver_that_refuses_torchs_events_on_the_share_gives_no_share(green: Any) -> None:
    Event.refuses[green.stream] = "CUDA error: invalid resource handle\nCUDA kernel errors might be"
    found = background_stream(green.device, Sharing(share=0.25))
    assert found.stream is not green.stream
    assert found.granted == "stream priority low, on all multiprocessors (CUDA error: invalid resource handle)"


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


def test_a_daemon_whose_folder_is_closed_to_this_user_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", f"/{300 * 'x'}")
    assert mps().startswith("not running for this user")


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
def test_every_gpu_of_the_machine_is_described_and_a_share_computes_the_same() -> None:
    found = dp.environment()
    assert len(found.gpu_abilities) == len(found.gpus) > 0
    assert "yes" in {gpu.cuda_graphs for gpu in found.gpu_abilities}
    device = find_device("cuda")
    share = sm_share(device, 0.25)
    if share.problem is None:
        assert share.granted is not None
        assert 0 < share.granted < torch.cuda.get_device_properties(0).multi_processor_count
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
