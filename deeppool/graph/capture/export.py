"""How models and losses are given to torch.export."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

EXAMPLE_BATCH = 3
"""Odd and small: a model that fixes its batch, or needs an even one, shows it."""

NOISY = ("torch.fx.experimental", "torch.export", "torch._export", "torch._subclasses")
"""Loggers that tell of a failed export at length."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Export logs whole graphs before it raises; our error says it in a line."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # nn.LSTM lists its weights anew in every forward; export puts the list back.
            warnings.filterwarnings("ignore", message="The tensor attributes? self")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
