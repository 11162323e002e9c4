"""Compiles the engine with the system's C++ compiler, once for each version of it, and loads it."""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import filelock

from deeppool.base.private_files import check_private
from deeppool.errors import RunError

_SOURCES = ("engine.cpp", "firing.hpp", "participant.hpp", "peers.hpp", "straggler_aware.hpp")
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")
_SECONDS = 400.0
"""Limit of a compilation, which takes six seconds of a processor, and of the wait for another process's."""
_log = logging.getLogger(__name__)


@functools.cache
def load_engine() -> ctypes.CDLL | None:
    """Returns the engine; None where it cannot be had, which is logged once with the reason."""
    try:
        return _declared(ctypes.CDLL(str(_compiled())))
    except (OSError, RunError, filelock.Timeout, subprocess.SubprocessError) as error:
        _log.warning("partial all-reduces over TCP run in Python, which is many times slower: %s", _reason(error))
        return None


def _compiled() -> Path:
    """Returns the library, which it makes if this user has none of these sources and this compiler yet."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))), None)
    if compiler is None:
        raise RunError("there is no C++ compiler (install g++, or name one in CXX)")
    folder = _cache()
    sources = Path(__file__).parent
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_SECONDS, check=True).stdout
    text = b"".join((sources / name).read_bytes() for name in _SOURCES)
    name = hashlib.sha256(text + version + " ".join(_FLAGS).encode()).hexdigest()[:24]
    library = folder / f"engine-{name}.so"
    with filelock.FileLock(folder / "compiling.lock", timeout=_SECONDS):
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                made = Path(work) / library.name
                command = [compiler, *_FLAGS, "-o", str(made), str(sources / _SOURCES[0])]
                subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True)
                os.replace(made, library)
    return library


def _cache() -> Path:
    """Returns the folder of compiled engines: whoever could write there could run code in this process."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "deeppool"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder, writable_only=True)
    return folder


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines() or [""]
        return f"{error.cmd[0]} ended with exit code {error.returncode}: {lines[0]}"
    return str(error)


def _declared(engine: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer, number, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
    small, seed = ctypes.c_int32, ctypes.c_uint64
    for name, result, arguments in (
        ("start", pointer, (pointer, number, seed, integer, pointer, small, pointer)),
        ("add", None, (pointer, text, integer, small)),
        ("finish", None, (pointer,)),
        ("wait", integer, (pointer, number)),
        ("take", integer, (pointer, pointer, text)),
        ("pending", integer, (pointer, text)),
        ("state", None, (pointer, pointer)),
        ("stop", None, (pointer, small, number)),
        ("initiator", small, (small, seed, integer)),
    ):
        function = getattr(engine, f"deeppool_{name}")
        function.restype, function.argtypes = result, arguments
    return engine
