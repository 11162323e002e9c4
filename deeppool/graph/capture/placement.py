"""Moves a captured model to another device: its parameters, its buffers, and the devices that its program names."""

from typing import Any

import torch
from torch import fx, nn

from deeppool.graph.capture.capture import CapturedModel


def place_model(captured: CapturedModel, place: torch.device) -> CapturedModel:
    """Moves a captured model, in place; program and source share the moved parameters as they shared the others.

    Args:
        captured: the model.
        place: device to move it to.
    """
    moved: dict[int, torch.Tensor] = {}
    modules = {id(module): module for root in (captured.source, captured.program) for module in root.modules()}
    before = [tensor for module in modules.values() for _, _, tensor in _held(module)]
    for module in modules.values():
        for holder, name, tensor in _held(module):
            if tensor.device != place:
                if id(tensor) not in moved:
                    moved[id(tensor)] = _moved(tensor, place)
                holder[name] = moved[id(tensor)]
    # Their identities count until all are replaced.
    del before
    for node in captured.program.graph.nodes:
        node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), lambda x: _renamed(x, place))
    captured.program.recompile()
    return captured


def _held(module: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """Returns the tensors of a module itself, with the mapping that holds each, and its name there."""
    holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, module.__dict__)
    return [(x, name, value) for x in holders for name, value in list(x.items()) if isinstance(value, torch.Tensor)]


def _moved(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    moved = tensor.detach().to(place)
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def _renamed(argument: Any, place: torch.device) -> Any:
    return place if isinstance(argument, torch.device) else argument
