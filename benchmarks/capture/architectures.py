"""Architectures that deeppool was not developed with: timm, transformers, torchvision, and models written here."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.capture.written_here import FLOAT, INT, WRITTEN, Shapes
from deeppool.graph.models.torchvision_operators import define_missing_operators

CLASSES, VOCABULARY = 10, 100


@dataclass(frozen=True)
class Architecture:
    """A model that can be built, what it takes, and its loss."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    inputs: Shapes
    """Shape and type of one sample, by the name of ``forward``'s argument; an empty name is the first."""
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None
    """None: deeppool's default."""


def architectures() -> Iterator[Architecture]:
    """Yields all; nothing is built before it is asked for."""
    for kind, (shapes, loss) in WRITTEN.items():
        yield Architecture(kind.__name__, "written here", kind, shapes, loss)
    for name, (shape, options) in TORCHVISION.items():
        yield Architecture(name, "torchvision", partial(_torchvision, name, options), {"": (shape, FLOAT)})
    yield Architecture(
        "raft_small", "torchvision", partial(_torchvision, "raft_small", {}),
        {"image1": ((3, 128, 128), FLOAT), "image2": ((3, 128, 128), FLOAT)}, _flow_loss,
    )  # fmt: skip
    for names, (head, shapes) in TRANSFORMERS.items():
        for name in names.split():
            yield Architecture(name, "transformers", partial(_transformers, name, head), shapes)
    for name, (size, options) in TIMM.items():
        yield Architecture(name, "timm", partial(_timm, name, options), {"": ((3, size, size), FLOAT)})


# -- torchvision ------------------------------------------------------------------------------------------

BACKBONES = {"weights_backbone": None}
TORCHVISION: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "densenet169": ((3, 32, 32), {}),
    "efficientnet_b1": ((3, 32, 32), {}),
    "mnasnet1_3": ((3, 32, 32), {}),
    "regnet_y_800mf": ((3, 32, 32), {}),
    "regnet_x_800mf": ((3, 32, 32), {}),
    "shufflenet_v2_x1_5": ((3, 32, 32), {}),
    "squeezenet1_0": ((3, 32, 32), {}),
    "vgg13_bn": ((3, 32, 32), {}),
    "fcn_resnet50": ((3, 32, 32), BACKBONES),
    "deeplabv3_mobilenet_v3_large": ((3, 32, 32), BACKBONES),
    "lraspp_mobilenet_v3_large": ((3, 32, 32), BACKBONES),
    "r3d_18": ((3, 4, 16, 16), {}),
    "mc3_18": ((3, 4, 16, 16), {}),
    "r2plus1d_18": ((3, 4, 16, 16), {}),
    "swin3d_t": ((3, 4, 32, 32), {}),
    "fasterrcnn_mobilenet_v3_large_fpn": ((3, 64, 64), BACKBONES),
    "retinanet_resnet50_fpn": ((3, 64, 64), BACKBONES),
    "ssdlite320_mobilenet_v3_large": ((3, 64, 64), BACKBONES),
    "keypointrcnn_resnet50_fpn": ((3, 64, 64), BACKBONES),
}


def _torchvision(name: str, options: dict[str, Any]) -> nn.Module:
    define_missing_operators()
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def _flow_loss(outputs: Any, _: torch.Tensor) -> torch.Tensor:
    """Mean size of every iteration's flow: a target of optical flow is no class."""
    return sum(flow.square().mean() for flow in outputs) / len(outputs)


# -- transformers -----------------------------------------------------------------------------------------

TOKENS: Shapes = {"input_ids": ((16,), INT)}
BOTH_TOKENS: Shapes = {"input_ids": ((16,), INT), "decoder_input_ids": ((16,), INT)}
PIXELS: Shapes = {"pixel_values": ((3, 32, 32), FLOAT)}
TRANSFORMERS: dict[str, tuple[str, Shapes]] = {
    "albert electra deberta-v2 mpnet squeezebert convbert fnet funnel longformer big_bird nystromformer roformer ibert "
    "mobilebert modernbert esm xlm": ("MaskedLM", TOKENS),
    "bloom falcon gpt_neo gpt_neox gptj codegen mistral mixtral gemma2 phi qwen3 olmo2 stablelm cohere mpt xglm ctrl "
    "mamba rwkv recurrent_gemma deepseek_v3 jamba xlnet": ("CausalLM", TOKENS),
    "mbart pegasus marian m2m_100 led prophetnet": ("Seq2SeqLM", BOTH_TOKENS),
    "switch_transformers longt5": ("Seq2SeqLM", {**BOTH_TOKENS, "attention_mask": ((16,), INT)}),
    "vit beit swinv2 convnext resnet mobilevit poolformer pvt dinov2 segformer cvt swiftformer ijepa": (
        "ImageClassification",
        PIXELS,
    ),
    "audio-spectrogram-transformer": ("AudioClassification", {"input_values": ((64, 32), FLOAT)}),
    "wav2vec2 hubert sew": ("AudioClassification", {"input_values": ((2000,), FLOAT)}),
    "yolos": ("ObjectDetection", PIXELS),
}
WIDTHS = "hidden_size d_model n_embd dim word_embed_proj_dim embedding_size emb_dim embed_dim"
SMALL = (
    (WIDTHS, 32),
    ("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers", 2),
    ("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff hidden_dim ffn_hidden_size d_inner", 64),
    ("head_dim d_kv d_head rotary_dim", 8),
    ("vocab_size src_vocab_size tgt_vocab_size", VOCABULARY),
    ("max_position_embeddings n_positions max_source_positions", 64),
    ("image_size", 32),
    ("num_labels", CLASSES),
)
"""Attributes that configurations have, and their values; for those that an architecture has."""
PLAIN_TRANSFORMERS = ("vit", "beit", "dinov2", "ijepa")
"""Models of images that have one width; the others keep theirs, one for each stage."""
OWN: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
    "big_bird": {"attention_type": "original_full"},
    "deepseek_v3": {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4},
    "esm": {"vocab_size": 100, "pad_token_id": 1, "mask_token_id": 2},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "funnel": {"block_sizes": [1, 1]},
}
"""Further attributes of single architectures."""


def _transformers(name: str, head: str) -> nn.Module:
    define_missing_operators()
    import transformers

    config = transformers.AutoConfig.for_model(name)
    for attributes, value in SMALL if head != "ImageClassification" or name in PLAIN_TRANSFORMERS else SMALL[-2:]:
        for attribute in attributes.split():
            # Some derive an attribute from others.
            with contextlib.suppress(AttributeError, NotImplementedError):
                if isinstance(getattr(config, attribute, None), int):
                    setattr(config, attribute, value)
    for attribute, value in {"use_cache": False, **OWN.get(name, {})}.items():
        setattr(config, attribute, value)
    for attribute, value in list(vars(config).items()):
        if isinstance(value, float) and any(word in attribute for word in ("drop", "mask_time_prob")):
            setattr(config, attribute, 0.0)
        elif attribute.endswith("token_id") and isinstance(value, int) and value >= VOCABULARY:
            setattr(config, attribute, 0)
    model: nn.Module = getattr(transformers, f"AutoModelFor{head}").from_config(config)
    return model.train()


# -- timm -------------------------------------------------------------------------------------------------

TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (32, {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 4}),
    "botnet26t_256": (64, {"img_size": 64}),
    "cait_xxs24_224": (32, {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 4}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "coat_tiny": (64, {"img_size": 64}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "convformer_s18": (32, {}),
    "poolformerv2_s12": (32, {}),
    "convit_tiny": (32, {"img_size": 32, "depth": 4}),
    "convnext_atto": (32, {}),
    "convnextv2_atto": (32, {}),
    "crossvit_tiny_240": (240, {}),
    "cspresnet50": (32, {}),
    "davit_tiny": (32, {"depths": (1, 1, 1, 1)}),
    "deit_tiny_distilled_patch16_224": (32, {"img_size": 32, "embed_dim": 48, "depth": 2}),
    "dla34": (32, {}),
    "dpn48b": (32, {}),
    "eca_halonext26ts": (256, {}),
    "edgenext_xx_small": (64, {}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (224, {}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (224, {}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "depth": 2}),
    "fasternet_t0": (32, {}),
    "fastvit_t8": (64, {}),
    "focalnet_tiny_srf": (32, {}),
    "gcresnext26ts": (64, {}),
    "gcvit_xxtiny": (224, {}),
    "ghostnet_100": (32, {}),
    "gmixer_12_224": (32, {"img_size": 32}),
    "gmlp_ti16_224": (32, {"img_size": 32}),
    "hgnetv2_b0": (32, {}),
    "hiera_tiny_224": (224, {}),
    "hrnet_w18_small": (64, {}),
    "inception_next_tiny": (32, {"depths": (1, 1, 1, 1)}),
    "inception_v4": (96, {}),
    "lambda_resnet26t": (64, {}),
    "lcnet_050": (32, {}),
    "levit_128s": (224, {}),
    "mambaout_femto": (32, {}),
    "maxvit_rmlp_pico_rw_256": (64, {"img_size": 64}),
    "mixer_s16_224": (32, {"img_size": 32}),
    "mixnet_s": (32, {}),
    "mobilenetv4_conv_small": (32, {}),
    "mobileone_s0": (32, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mvitv2_tiny": (64, {"img_size": 64}),
    "nest_tiny": (224, {}),
    "nextvit_small": (64, {}),
    "nf_resnet50": (32, {}),
    "pit_ti_224": (224, {}),
    "pvt_v2_b0": (32, {}),
    "repvgg_a0": (32, {}),
    "repvit_m0_9": (32, {}),
    "res2net50_26w_4s": (32, {}),
    "resmlp_12_224": (32, {"img_size": 32}),
    "resnest14d": (32, {}),
    "resnetblur50": (32, {}),
    "rexnet_100": (32, {}),
    "selecsls42": (64, {}),
    "sequencer2d_s": (32, {"layers": (1, 1, 1, 1)}),
    "shvit_s1": (64, {}),
    "skresnet18": (32, {}),
    "starnet_s1": (32, {}),
    "swiftformer_xs": (64, {}),
    "swin_tiny_patch4_window7_224": (56, {"img_size": 56, "depths": (1, 1, 2, 1)}),
    "swinv2_cr_tiny_ns_224": (64, {"img_size": 64, "depths": (1, 1, 2, 1)}),
    "swinv2_tiny_window8_256": (64, {"img_size": 64, "depths": (1, 1, 2, 1)}),
    "tiny_vit_5m_224": (224, {}),
    "tnt_s_patch16_224": (32, {"img_size": 32, "depth": 2}),
    "twins_svt_small": (64, {"img_size": 64, "depths": (1, 1, 2, 1)}),
    "visformer_tiny": (32, {"img_size": 32}),
    "vit_relpos_small_patch16_224": (32, {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 4}),
    "vit_base_patch16_siglip_gap_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4}),
    "vit_tiny_r_s16_p8_224": (32, {"img_size": 32}),
    "vitamin_small_224": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "vovnet39a": (32, {}),
    "xception41": (64, {}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32}),
}


def _timm(name: str, options: dict[str, Any]) -> nn.Module:
    define_missing_operators()
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)
    return model.train()
