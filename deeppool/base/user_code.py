"""User code in a traceback: what belongs neither to Python, nor to torch, nor to this package."""

import functools
import importlib.util
import os
import sysconfig
import traceback
from pathlib import Path

OURS = f"{Path(__file__).parents[1]}{os.sep}"
STANDARD = f"{sysconfig.get_path('stdlib')}{os.sep}"
GENERATED = ("<frozen", "<eval_with_key", "<string")


@functools.cache
def torch_folder() -> str:
    """Returns the folder of torch, which a user's may be called as well; does not import it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return f"{Path(spec.origin).parent}{os.sep}"


def is_library(path: str) -> bool:
    """Whether a source file belongs to Python, torch or this package, and not to the user."""
    standard = path.startswith(STANDARD) and "site-packages" not in path
    return standard or path.startswith((OURS, torch_folder(), *GENERATED))


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost frame of user code in the traceback of an error, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if not is_library(frame.filename)), None)
