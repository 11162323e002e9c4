"""Named ranges for the profiler that a user has started: torch.profiler, emit_nvtx, or Nsight Systems by NVTX."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

_PLAIN = str.maketrans({"…": "...", "→": "->", "←": "<-"})


def plain(name: str) -> str:
    """Returns a name in ASCII: traces of torch 2.13 call a range ``unknown`` whose name has any other character."""
    return name.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def profiler_on() -> bool:
    """Whether a profiler of torch records the calling thread."""
    import torch

    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # its stub does not export it


def record_range(name: str) -> AbstractContextManager[object]:
    """Encloses work in a range of this name in the trace of torch's profiler; does nothing while there is none."""
    if not profiler_on():
        return nullcontext()
    import torch

    return torch.profiler.record_function(plain(name))


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """As :func:`record_range`, with an NVTX range for Nsight Systems, which costs about a microsecond without it."""
    import torch

    with torch.cuda.nvtx.range(plain(name)), record_range(name):
        yield
