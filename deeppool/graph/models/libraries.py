"""Classifiers of torchvision and language models of transformers, by the libraries' own names.

Weights are random and nothing is downloaded: image sizes are those of torchvision's published weights, and
configurations of transformers are the architectures' defaults, those of the papers' models.
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
"""Default sequence length, as in most of BERT's pre-training."""
SLOW_INITIALISATION = frozenset(("inception_v3", "googlenet"))
"""Models whose truncated-normal initialisation takes minutes; torch's default trains as well."""
HEADS = ("Seq2SeqLM", "MaskedLM", "CausalLM")
"""Language-model heads in order of preference: T5 has the first, BERT the second, GPT-2 the third."""

BuilderAndInputs = tuple[Callable[[], "Module"], tuple[Input, ...]]
"""Builder of a model, and its inputs."""


def torchvision_names() -> list[str]:
    """Lists torchvision's classifiers."""
    define_missing_operators()
    import torchvision

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def torchvision_model(name: str) -> BuilderAndInputs:
    """Returns a classifier in training mode, with the image size of its published weights."""
    define_missing_operators()
    import torchvision

    arguments: dict[str, Any] = {"init_weights": False} if name in SLOW_INITIALISATION else {}
    weights = torchvision.models.get_model_weights(name).DEFAULT
    # A vision transformer is made for one size, whatever its best weights were trained on.
    size = 224 if name.startswith("vit_") else weights.transforms.keywords["crop_size"]
    return partial(torchvision.models.get_model, name, weights=None, **arguments), (Input("", (3, size, size)),)


def transformers_names() -> list[str]:
    """Lists architectures with a language-model head; none where transformers is not installed."""
    define_missing_operators()
    try:
        import transformers  # noqa: F401
        from transformers.models.auto import modeling_auto
    except ImportError:
        return []
    return sorted({name for head in HEADS for name in _heads(modeling_auto, head)})


def transformers_model(architecture: str, **changes: Any) -> BuilderAndInputs:
    """Returns a language model in training mode that scores all positions, and its token inputs.

    Args:
        architecture: one of :func:`transformers_names`.
        changes: changes to the default configuration.

    Raises:
        CaptureError: transformers is not installed.
    """
    define_missing_operators()
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
        # The key-value cache serves generation only.
        config = transformers.AutoConfig.for_model(architecture, use_cache=False, **changes)
        model: Module = getattr(transformers, f"AutoModelFor{head}").from_config(config)
        return model.train()

    return build, tuple(Input(name, (TOKENS,), "int64") for name in names)


def _heads(modeling_auto: Any, head: str) -> Any:
    kind = {"Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM", "MaskedLM": "MASKED_LM", "CausalLM": "CAUSAL_LM"}[head]
    return getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
