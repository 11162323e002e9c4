"""Proofs that an operator computes each sample from that sample alone.

A rule looks at the dimensions along which an operator combines entries: where the samples' dimension is none of them,
the outputs count the same samples. Operators without a rule are tried on numbers (``sample_trials``), so only those
need one that are frequent, slow or random.
"""

from typing import Any

import torch
from torch import fx

from deeppool.graph.capture.grouping import operator_name
from deeppool.graph.capture.sample_layout import Layout, Samples, batch_dims, moved, reshaped

RESHAPES = frozenset("view _unsafe_view reshape flatten unflatten".split())
TAKES_SHAPE = RESHAPES | {"expand", "new_empty"}
"""Operators with rules for which the batch size is part of a shape, not a number that they compute with."""
MOVES = frozenset(
    (
        "permute transpose swapaxes swapdims movedim moveaxis t mT squeeze unsqueeze expand expand_as contiguous "
        "clone detach alias to _to_copy type_as slice narrow split split_with_sizes chunk unbind select cat stack "
        "zeros_like ones_like empty_like new_empty exponential geometric uniform normal_functional dropout "
        "native_dropout feature_dropout alpha_dropout feature_alpha_dropout bernoulli rand_like randn_like "
        "normal poisson hardswish prelu log_sigmoid one_hot __and__ __or__"
    ).split()
)
"""Operators that pick entries, or change or draw each alone: samples stay where their dimension keeps its size."""
ALONG_DIM = frozenset(
    (
        "softmax log_softmax sum mean prod amax amin max min argmax argmin median kthvalue var std var_mean std_mean "
        "logsumexp norm linalg_vector_norm all any count_nonzero cumsum cumprod logcumsumexp sort argsort topk glu "
        "flip roll slice_scatter pad"
    ).split()
)
"""Operators that combine the entries along the dimensions of an argument, by default along all."""
SAMPLES_FIRST = frozenset(
    (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm group_norm instance_norm"
    ).split()
)
"""Operators on (samples, channels, …). BatchNorm's statistics are those of one GPU's samples, which plans state."""
MATRICES = frozenset("matmul mm bmm addmm baddbmm linear scaled_dot_product_attention linalg_cholesky cholesky".split())
"""Operators on the last two dimensions; Cholesky's takes no random numbers."""
ROWS = {"matmul": 0, "mm": 0, "addmm": 1, "linear": 0}
"""Products that compute each row of one argument alone, and its position."""
RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())

Sampled = dict[fx.Node, Samples]


def prove(node: fx.Node, inputs: dict[fx.Node, Layout], values: list[torch.Tensor]) -> list[Layout] | None:
    """Returns where the outputs of an operator count samples, or None if no rule shows that it keeps them apart.

    Args:
        node: an operator.
        inputs: where its tensors count samples.
        values: its outputs, of symbolic shapes.
    """
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return None
    name = operator_name(node)
    sampled = {arg: samples for arg, samples in inputs.items() if samples is not None}
    if not sampled:
        # A permutation is drawn for all samples together.
        drawn = torch.Tag.nondeterministic_seeded in node.target.tags and name != "randperm"
        return [_batch_first(value) for value in values] if drawn or name == "empty" else None
    if name not in TAKES_SHAPE and any(is_size(arg) for arg in node.all_input_nodes):
        return None
    source, samples = next(iter(sampled.items()))
    if name in RESHAPES and len(sampled) == 1:
        found = [reshaped(samples, source.meta["val"], value) for value in values]
    elif _combines_no_samples(node, name, sampled):
        found = [moved(samples, source.meta["val"], value) for value in values]
    else:
        return None
    return None if None in found else found


def is_size(node: fx.Node) -> bool:
    """Whether a value is the batch size, or a number computed from it."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _batch_first(value: torch.Tensor) -> Layout:
    """Returns the layout of a tensor whose elements are drawn alone: any that its shape allows is one."""
    return next((Samples(dim, k) for dim, k in batch_dims(value).items() if k), None)


def _combines_no_samples(node: fx.Node, name: str, sampled: Sampled) -> bool:
    given = _arguments(node)
    # Counted from the last dimension, as broadcasting does.
    dims = {samples.dim - _rank(arg) for arg, samples in sampled.items()}
    aligned = len({(samples.dim - _rank(arg), samples.inner) for arg, samples in sampled.items()}) == 1
    only_first = list(sampled) == [node.args[0]]
    if name in MOVES or torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
        return aligned
    if name in ALONG_DIM:
        return aligned and dims.isdisjoint(_dims_along(given, _rank(next(iter(sampled)))))
    if name in ("layer_norm", "rms_norm"):
        # The sizes of the dimensions that they combine are fixed.
        return only_first
    if name in SAMPLES_FIRST or "_pool" in name or name.startswith("upsample_"):
        batched = "conv" not in name or _rank(given["input"]) == _rank(given["weight"])
        return only_first and batched and next(iter(sampled.values())).dim == 0
    if name in MATRICES:
        of_rows = name in ROWS and list(sampled) == [node.args[ROWS[name]]] and dims != {-1}
        return of_rows or (aligned and max(dims) < -2)
    if name == "embedding":
        return list(sampled) == [node.args[1]]
    if name in RECURRENT and "batch_first" in given:
        places = {arg: 0 if arg is given["input"] and given["batch_first"] else 1 for arg in sampled}
        return all(_rank(arg) == 3 and samples.dim == places[arg] for arg, samples in sampled.items())
    return name == "einsum" and _has_one_letter(given["equation"], given["tensors"], sampled)


def _dims_along(given: dict[str, Any], rank: int) -> set[int]:
    """Returns the dimensions that an operator names, counted from the last; all if it names none."""
    dims = range(-(len(given["pad"]) // 2), 0) if "pad" in given else given.get("dim", given.get("dims"))
    dims = [dims] if isinstance(dims, int) else dims or range(rank)
    return {dim - rank if dim >= 0 else dim for dim in dims}


def _has_one_letter(equation: str, tensors: list[fx.Node], sampled: Sampled) -> bool:
    """Whether einsum has the same letter for the samples of all tensors."""
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    if any("." in term for term in terms):
        return False
    pairs = zip(tensors, terms, strict=True)
    return len({(term[sampled[arg].dim], sampled[arg].inner) for arg, term in pairs if arg in sampled}) == 1


def _rank(node: fx.Node) -> int:
    return int(node.meta["val"].dim())


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Returns the arguments of an operator by name, with defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((argument.name for argument in schema), node.args, strict=False))
    return {argument.name: argument.default_value for argument in schema} | given | dict(node.kwargs)
