"""Options for torch.export of models and losses."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

EXAMPLE_BATCH = 3
"""Batch of the example inputs: small and odd, so that fixed or even batches fail."""

NOISY = ("torch.fx.experimental", "torch.export", "torch._export", "torch._subclasses")
"""Loggers with long messages about a failed export."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences export's logs of whole graphs before it raises; a one-line error replaces them."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # nn.LSTM reassigns its list of weights in every forward; export restores it.
            warnings.filterwarnings("ignore", message="The tensor attributes? self")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
