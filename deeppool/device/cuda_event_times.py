"""Times of events on a GPU, and waits for them, by its own clock: the host launches both and goes on.

Each is a kernel of one thread. A wait holds its stream, as the kernels of NCCL hold theirs until data arrives, and one
multiprocessor.
"""

import ctypes
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from deeppool.device.event_times import E
from deeppool.errors import DeviceUnavailableError

CAPACITY = 2**14
"""Events of which times are kept: the start, and the two passes of each stage that a plan may have."""

SOURCE = r"""
__device__ long long now() {
    long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

extern "C" __global__ void mark(long long *times, int event) {
    times[event] = now();
}

extern "C" __global__ void wait(long long *times, const int *events, const long long *delays, int count, int reached) {
    long long until = 0;
    for (int i = 0; i < count; ++i) {
        long long time = times[events[i]] + delays[i];
        until = time > until ? time : until;
    }
    while (now() < until) __nanosleep(200);
    if (reached >= 0) times[reached] = until;
}
"""
"""CUDA C. The clock counts nanoseconds."""


class CudaEventTimes:
    """:class:`deeppool.device.event_times.EventTimes` on the selected GPU."""

    def __init__(self) -> None:
        """Compiles the kernels for the selected GPU: a tenth of a second."""
        self._times = torch.zeros(CAPACITY, dtype=torch.int64, device="cuda")
        self._numbers: dict[Hashable, int] = {}
        self._moments: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        """Events and delays, on the GPU."""
        major, minor = torch.cuda.get_device_capability()
        self._mark, self._wait = _kernels(f"compute_{major}{minor}", "mark", "wait")

    def mark(self, event: Hashable) -> None:
        """Launches a kernel that reads the clock."""
        _launch(self._mark, self._times, self._number(event))

    def when(self, moment: Mapping[E, float]) -> float:
        """Returns 0: to know it, the host would have to wait."""
        return 0.0

    def wait(self, moment: Mapping[E, float], *, reached: Hashable = None) -> None:
        """Launches a kernel that ends at the moment."""
        key = tuple(moment.items())
        if key not in self._moments:
            events = torch.tensor([self._number(event) for event in moment], dtype=torch.int32)
            delays = torch.tensor([round(1e9 * seconds) for seconds in moment.values()], dtype=torch.int64)
            self._moments[key] = events.cuda(), delays.cuda()
        events, delays = self._moments[key]
        _launch(self._wait, self._times, events, delays, len(moment), -1 if reached is None else self._number(reached))

    def _number(self, event: Hashable) -> int:
        return self._numbers.setdefault(event, len(self._numbers))


def compile_kernels(architecture: str) -> bytes:
    """Returns the kernels as PTX.

    Args:
        architecture: such as ``compute_90``.

    Raises:
        DeviceUnavailableError: cuda-bindings is missing, or the compiler refuses.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceUnavailableError(
            f"a rank on a GPU beside emulated ones needs cuda-bindings, which torch's wheels for CUDA bring: {error} "
            "(pip install cuda-bindings)"
        ) from error
    program = _checked(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"event_times.cu", 0, [], []))
    _checked(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={architecture}".encode()]))
    code = bytes(_checked(nvrtc.nvrtcGetPTXSize(program)))
    _checked(nvrtc.nvrtcGetPTX(program, code))
    return code


def _kernels(architecture: str, *names: str) -> list[Any]:
    from cuda.bindings import driver

    module = _checked(driver.cuModuleLoadData(compile_kernels(architecture)))
    return [_checked(driver.cuModuleGetFunction(module, name.encode())) for name in names]


def _launch(kernel: Any, *arguments: "torch.Tensor | int") -> None:
    """Launches one thread on the current stream."""
    from cuda.bindings import driver

    values = tuple(x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments)
    types = tuple(ctypes.c_void_p if isinstance(x, torch.Tensor) else ctypes.c_int for x in arguments)
    stream = torch.cuda.current_stream().cuda_stream
    _checked(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0))


def _checked(found: tuple[Any, ...]) -> Any:
    """Returns the value that a function of cuda.bindings returned.

    Raises:
        DeviceUnavailableError: the function failed.
    """
    status, *values = found
    if int(status) != 0:
        raise DeviceUnavailableError(
            f"the GPU cannot time a rank beside emulated ones by its own clock: {status.name} (run all ranks)"
        )
    return values[0] if values else None
