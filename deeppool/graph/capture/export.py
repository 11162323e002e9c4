"""Options for torch.export of models and losses: fast, and without long messages."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from deeppool.graph.capture.fake_tensors import ShapesMode

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
    # A second of imports, for those that export a model and not for all that name its classes.
    import torch._export.non_strict_utils
    import torch.export._trace

    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    # Export prints the graph so far, hundreds of lines, where control flow depends on data.
    vars(torch.export._trace)["print"] = lambda *_, **__: None
    fake_tensors = vars(torch._export.non_strict_utils)
    fake_tensors["FakeTensorMode"] = ShapesMode
    stack_traces = getattr(fx.config, "do_not_emit_stack_traces", False)  # not in torch 2.11
    fx.config.do_not_emit_stack_traces = True  # an eighth of the time; nothing here reads them
    try:
        with warnings.catch_warnings():
            # nn.LSTM reassigns its list of weights in every forward; export restores it.
            warnings.filterwarnings("ignore", message="The tensor attributes? self")
            yield
    finally:
        vars(torch.export._trace).pop("print", None)
        fake_tensors["FakeTensorMode"] = FakeTensorMode
        fx.config.do_not_emit_stack_traces = stack_traces
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
