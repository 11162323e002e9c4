"""Options for torch.export of models and losses."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

import torch.export._trace

EXAMPLE_BATCH = 3
"""Batch of the example inputs: small and odd, so that fixed or even batches fail."""

FIXED_BATCH = ("specialized", "Constraints violated", "inferred a static shape")
"""Phrases in torch.export's errors about models and losses with a fixed batch."""

NOISY = ("torch.fx.experimental", "torch.export", "torch._export", "torch._subclasses")
"""Loggers with long messages about a failed export."""


def fixes_batch(error: Exception) -> bool:
    """Whether an export failed because the batch is a number in the program."""
    return any(phrase in str(error) for phrase in FIXED_BATCH)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences export's logs of whole graphs before it raises; a one-line error replaces them."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    # Export prints the graph so far, hundreds of lines, where control flow depends on data.
    vars(torch.export._trace)["print"] = lambda *_, **__: None
    try:
        with warnings.catch_warnings():
            # nn.LSTM reassigns its list of weights in every forward; export restores it.
            warnings.filterwarnings("ignore", message="The tensor attributes? self")
            yield
    finally:
        vars(torch.export._trace).pop("print", None)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
