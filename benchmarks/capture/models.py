"""The models of the coverage table: torchvision's families, language models, and models written here."""

from collections.abc import Callable

import torch
from torch import nn

from deeppool.graph.models.libraries import transformers_model

TORCHVISION = (
    "alexnet vgg16 vgg16_bn squeezenet1_1 resnet18 resnet50 wide_resnet101_2 resnext50_32x4d densenet121 inception_v3 "
    "googlenet mobilenet_v2 mobilenet_v3_large mnasnet1_0 shufflenet_v2_x1_0 efficientnet_b0 efficientnet_v2_s "
    "regnet_x_400mf regnet_y_400mf convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t"
).split()
SIZES = (32, 48, 64, 96, 128, 224, 299)
"""Edges of images that are tried, smallest first."""
TOKENS = (16,)
SMALL = {
    "bert": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128},
    "roberta": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128},
    "distilbert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4},
    "opt": {
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "ffn_dim": 128,
    },
    "llama": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
    },
    "qwen2": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
    },
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4},
    "bart": {
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
    },
}
"""Architectures of transformers, narrowed: the operators are those of the full size."""


class LSTMClassifier(nn.Module):
    """Classes from the last state of a sequence of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 32)
        self.lstm = nn.LSTM(32, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


def mlp() -> nn.Module:
    """Three dense layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 32 * 32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def u_net() -> nn.Module:
    """The example of a model of one's own."""
    from examples.u_net import UNet

    return UNet()


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "LSTM classifier": (LSTMClassifier, TOKENS, torch.int64),
    "U-Net": (u_net, (3, 32, 32), torch.float32),
    "MLP": (mlp, (3, 32, 32), torch.float32),
}


def small_language_model(architecture: str) -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    """A narrowed model of transformers with random weights, and the shapes of its inputs."""
    build, inputs = transformers_model(architecture, vocab_size=1000, **SMALL[architecture])
    return build(), {given.name: TOKENS for given in inputs}
