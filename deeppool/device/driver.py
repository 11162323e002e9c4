"""What only the CUDA driver tells: how many multiprocessors a stream of a green context was granted.

torch asks for a number and keeps what comes. The driver tells from version 12.4 on: ``cuStreamGetGreenCtx`` and
``cuGreenCtxGetDevResource`` of ``cuda.h``.
"""

import ctypes
from typing import Any

LIBRARY = "libcuda.so.1"
SM_RESOURCE = 1
"""``CU_DEV_RESOURCE_TYPE_SM``."""
RESOURCE_BYTES = 512
"""More than ``CUdevResource`` has in any version, which grew at its end."""
COUNT_OFFSET = 96
"""Of ``sm.smCount`` in it: the type, and padding up to the union."""


def granted_multiprocessors(stream: int, driver: Any = None) -> int | None:
    """Returns the multiprocessors of a stream's green context; None where the driver does not say.

    Args:
        stream: handle of the stream.
        driver: the driver's library. Default: the system's.
    """
    try:
        driver = driver or ctypes.CDLL(LIBRARY)
        context = ctypes.c_void_p()
        if driver.cuStreamGetGreenCtx(ctypes.c_void_p(stream), ctypes.byref(context)) or not context:
            return None
        resource = (ctypes.c_ubyte * RESOURCE_BYTES)()
        if driver.cuGreenCtxGetDevResource(context, ctypes.byref(resource), SM_RESOURCE):
            return None
    # No driver, or one without these functions.
    except (OSError, AttributeError):
        return None
    found = ctypes.c_uint.from_buffer(resource, COUNT_OFFSET).value
    return found or None
