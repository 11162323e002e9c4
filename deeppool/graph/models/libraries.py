"""Every classifier of torchvision and every language model of transformers, by the library's own name for it.

Weights are random and nothing is downloaded: torchvision's tables say on which images a model was trained,
and a configuration of transformers is its architecture's default, that of the paper's model.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from deeppool.errors import CaptureError
from deeppool.graph.layer import Input
from deeppool.graph.models.torchvision_operators import define_missing_operators

if TYPE_CHECKING:
    from torch.nn import Module

TOKENS = 128
"""Length of a sequence unless another is given: that of most of BERT's pre-training."""
SLOW_INITIALISATION = frozenset(("inception_v3", "googlenet"))
"""Their truncated-normal initialisation takes minutes, and torch's default trains as well."""
HEADS = ("Seq2SeqLM", "MaskedLM", "CausalLM")
"""Language-model heads in the order in which one is chosen: T5 has the first, BERT the second, GPT-2 the third."""

Found = tuple[Callable[[], "Module"], tuple[Input, ...]]
"""How to build a model, and what it takes."""


def torchvision_names() -> list[str]:
    """Of all classifiers."""
    define_missing_operators()
    import torchvision

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def torchvision_model(name: str) -> Found:
    """A classifier in training mode; its images are as large as those that its published weights take."""
    define_missing_operators()
    import torchvision

    arguments: dict[str, Any] = {"init_weights": False} if name in SLOW_INITIALISATION else {}
    weights = torchvision.models.get_model_weights(name).DEFAULT
    size = weights.transforms.keywords["crop_size"]
    return partial(torchvision.models.get_model, name, weights=None, **arguments), (Input("", (3, size, size)),)


def transformers_names() -> list[str]:
    """Architectures with a language model's head; none where transformers is not installed."""
    define_missing_operators()
    try:
        import transformers  # noqa: F401
        from transformers.models.auto import modeling_auto
    except ImportError:
        return []
    return sorted({name for head in HEADS for name in _heads(modeling_auto, head)})


def transformers_model(architecture: str, **changes: Any) -> Found:
    """A language model in training mode, all of its positions scored, and its tokens.

    Args:
        architecture: one of :func:`transformers_names`.
        changes: to the default configuration.

    Raises:
        CaptureError: transformers is not installed.
    """
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError:
        raise CaptureError(
            f"{architecture} is a model of transformers, which is not installed (pip install 'deeppool[transformers]')"
        ) from None
    head = next(head for head in HEADS if architecture in _heads(modeling_auto, head))
    names = ("input_ids", "decoder_input_ids") if head == "Seq2SeqLM" else ("input_ids",)

    def build() -> "Module":
        # A cache of keys and values is for generation; in training it only copies them.
        config = transformers.AutoConfig.for_model(architecture, use_cache=False, **changes)
        model: Module = getattr(transformers, f"AutoModelFor{head}").from_config(config)
        return model.train()

    return build, tuple(Input(name, (TOKENS,), "int64") for name in names)


def _heads(modeling_auto: Any, head: str) -> Any:
    kind = {"Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM", "MaskedLM": "MASKED_LM", "CausalLM": "CAUSAL_LM"}[head]
    return getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
