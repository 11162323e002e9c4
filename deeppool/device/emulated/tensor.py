"""Tensors of an emulated device, and their operators: each is checked, queued on the current stream, and returns.

An EmulatedTensor lies in memory of the device. Its operators reach ``__torch_dispatch__``, below autograd, which runs
over them unchanged. For torch's own code in C++ it is a tensor of the CPU, so that the kernels, and autocast, are the
CPU's; in Python its device is ``privateuseone``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from deeppool.device.emulated.memory import Access, Memory, Region
from deeppool.device.emulated.runtime import TYPE, DeviceRuntime
from deeppool.device.emulated.shapes import Form, form_of, tensors_in
from deeppool.device.emulated.signature import Signature, signature_of
from deeppool.device.multiprocessors import KernelWork

_HOST_INDICES = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)
"""Operators whose indices may lie on the host."""
_COPY = torch.ops.aten.copy_.default
_VIEWS_IN_PLACE = tuple(
    getattr(torch.ops.aten, name) for name in ("as_strided_", "squeeze_", "unsqueeze_", "t_", "transpose_")
)
"""Operators that give a tensor another shape or other strides, on the memory that it has."""


class EmulatedTensor(torch.Tensor):
    """A tensor in the memory of an emulated device."""

    backing: torch.Tensor
    """The same memory as a tensor of the CPU."""
    memory: Memory
    runtime: DeviceRuntime
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def wrap(real: torch.Tensor, memory: Memory, runtime: DeviceRuntime) -> "EmulatedTensor":
        """Returns memory of the device as a tensor of it."""
        # Without ``data`` a kernel that runs later would count as another change of a tensor that autograd has saved.
        made: EmulatedTensor = torch.Tensor._make_subclass(EmulatedTensor, real.data)
        made.backing, made.memory, made.runtime = real, memory, runtime
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device's torch device."""
        return self.runtime.place

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Queues an operator."""
        return dispatch(func, args, dict(kwargs or {}))

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As of a tensor; the host waits for a copy to it, unless the copy is asynchronous."""
        kwargs.pop("copy", None)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, form = torch._C._nn._parse_to(*args, **kwargs)
        here = self
        if dtype is not None and dtype != self.dtype:
            here = torch.Tensor.to(self, dtype)  # type: ignore[assignment]
        if form is not None:
            here = here.contiguous(memory_format=form)  # type: ignore[assignment]
        if device is None or device in (self.device, torch.device(TYPE)):
            return here
        return _ToHost.apply(here, non_blocking).to(device)  # type: ignore[no-any-return, no-untyped-call]

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns a copy on the host."""
        return self.to("cpu")

    def tolist(self) -> Any:
        """Returns the values as lists."""
        return self.detach().cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """Is refused, as for a tensor of a GPU."""
        raise TypeError("a tensor of the emulated device has no numpy array (call .cpu() first)")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"{self.detach().cpu()!r} on {self.device}"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        result = torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied
        memo[id(self)] = result
        return result

    # torch takes a class with these two as one whose parameters a module may swap for others.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["backing"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: None, size: Any, stride: Any) -> torch.Tensor:
        raise TypeError("a tensor of the emulated device cannot be traced (capture the model on the CPU)")


class _ToHost(torch.autograd.Function):
    """Copy to the host, whose gradient is copied to the device."""

    @staticmethod
    def forward(ctx: Any, source: EmulatedTensor, non_blocking: bool) -> torch.Tensor:
        ctx.place = source.device
        return _to_host(source, non_blocking)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.place), None


class PendingHostTensor(torch.Tensor):
    """A tensor of the host that an asynchronous copy fills: reading it before the host has waited is a hazard."""

    backing: torch.Tensor
    writer: Access
    runtime: DeviceRuntime
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes on the host, if the copy is certainly complete."""

        def ready(tensor: PendingHostTensor) -> torch.Tensor:
            tensor.runtime.hazards.check_host(tensor.writer, str(func))
            return tensor.backing

        with torch.no_grad():
            return func(*_map(PendingHostTensor, ready, args), **_map(PendingHostTensor, ready, kwargs or {}))


def dispatch(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Queues an operator of a tensor of the device; returns its results."""
    tensors = list(tensors_in((args, kwargs)))
    runtime = next(tensor.runtime for tensor in tensors if isinstance(tensor, EmulatedTensor))
    if operator is _COPY and not isinstance(args[0], EmulatedTensor):
        runtime.synchronize(runtime.stream)
        return args[0].copy_(args[1].backing)
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    signature = signature_of(operator)
    if operator.overloadpacket in _VIEWS_IN_PLACE:
        return _change_view(operator, args, kwargs)
    if signature.changes_shape:
        raise RuntimeError(f"{operator} changes the size of its argument, which the emulated device does not support")
    if signature.returns_values:
        return _on_the_host(operator, args, kwargs, runtime)
    if signature.is_view:
        return _view(operator, args, kwargs, runtime)
    if operator is not _COPY:
        _check_places(operator, tensors)
    if signature.written:
        _give_shapes(operator, signature, args, kwargs, runtime)
    return _queue(operator, signature, _Arguments(args, kwargs, signature, runtime))


class _Arguments:
    """Arguments of an operator, as tensors of the CPU on the same memory."""

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], signature: Signature, runtime: DeviceRuntime
    ) -> None:
        given = signature.arguments(args, kwargs)
        self.runtime, self.given = runtime, given
        self.writes = _regions(given[name] for name in signature.written if name in given)
        self.reads = _regions(value for name, value in given.items() if name not in signature.written)
        # The host may change its tensors after the launch.
        staged = _staged if runtime.scheduler.computes else _same_memory
        self.args = _map(torch.Tensor, staged, args)
        self.kwargs = _map(torch.Tensor, staged, kwargs)
        if signature.draws and given.get("generator") is None:
            self.kwargs["generator"] = runtime.generator


def _queue(operator: Any, signature: Signature, arguments: _Arguments) -> Any:
    runtime, args, kwargs = arguments.runtime, arguments.args, arguments.kwargs
    forms: Any = None
    if None in signature.returned:
        seeded = {"generator": None} if signature.draws else {}
        forms = runtime.shapes.results(operator, args, {**kwargs, **seeded}, computes=runtime.scheduler.computes)
        if forms is None:
            return _after_waiting(operator, args, kwargs, runtime)
    several = isinstance(forms, tuple | list)
    made = [_map(Form, lambda form: new_tensor(form, runtime), form) for form in (forms if several else [forms])]
    fresh: list[Any] = list(tensors_in(made))
    outputs = [_backing(tensor) for tensor in fresh]
    trains = torch.is_grad_enabled()

    def run() -> None:
        # An LSTM returns what its backward needs only where gradients are enabled.
        with torch.set_grad_enabled(trains):
            results = operator(*args, **kwargs)
        if outputs:
            _store(results, outputs, signature)

    writes = [*arguments.writes, *(region_of(x) for x in fresh)]
    runtime.launch(_name(operator), arguments.reads, writes, run, _works(operator, signature, arguments, outputs))
    if len(signature.returned) == 1 and not several:
        own = signature.returned[0]
        return made[0] if own is None else arguments.given[own]
    if len(signature.returned) == 1:
        return made
    if not signature.returned:
        return None
    return tuple(made[index] if own is None else arguments.given[own] for index, own in enumerate(signature.returned))


def _works(
    operator: Any, signature: Signature, arguments: _Arguments, outputs: Sequence[torch.Tensor]
) -> tuple[KernelWork, ...]:
    """Returns the work of an operator, for a device in virtual time."""
    costs = arguments.runtime.costs
    if costs is None:
        return ()
    if operator is _COPY and not isinstance(arguments.given["src"], EmulatedTensor):
        return costs.copy(arguments.args[0].nbytes)
    written = tensors_in([arguments.given.get(name) for name in signature.written])
    return costs.operator(operator, arguments.args, arguments.kwargs, [*outputs, *map(_same_memory, written)])


def _give_shapes(
    operator: Any, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], runtime: DeviceRuntime
) -> None:
    """Gives empty outputs, as torch's own factories make them, the shape of what will be written."""
    outputs = [value for name, value in kwargs.items() if name in signature.written and _is_empty(value)]
    if not outputs:
        return
    found = runtime.shapes.results(
        operator,
        _map(EmulatedTensor, _backing, args),
        _map(EmulatedTensor, _backing, kwargs),
        computes=runtime.scheduler.computes,
    )
    forms = [found] if isinstance(found, Form) else list(found)
    for output, form in zip(outputs, forms, strict=True):
        made = new_tensor(form, runtime)
        output.backing, output.memory = made.backing, made.memory
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            output.set_(made.backing)


def _is_empty(value: Any) -> bool:
    return isinstance(value, EmulatedTensor) and not value.numel()


def _store(results: Any, outputs: Sequence[torch.Tensor], signature: Signature) -> None:
    """Copies new results to the memory that was allocated for them at the launch."""
    each = results if len(signature.returned) > 1 else (results,)
    new = [result for result, own in zip(each, signature.returned, strict=True) if own is None]
    for output, result in zip(outputs, tensors_in(new), strict=True):
        output.copy_(result)


def _view(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], runtime: DeviceRuntime) -> Any:
    base = next(value for value in args if isinstance(value, EmulatedTensor))
    real = operator(*_map(EmulatedTensor, _backing, args), **kwargs)
    return _map(torch.Tensor, lambda view: EmulatedTensor.wrap(view, base.memory, runtime), real)


def _change_view(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EmulatedTensor:
    """Changes the shape and the strides of a tensor in place, on the memory that it has."""
    tensor: EmulatedTensor = args[0]
    tensor.backing = operator(tensor.backing.detach(), *args[1:], **kwargs)
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        tensor.set_(tensor.backing)  # type: ignore[call-overload]
    return tensor


def _on_the_host(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], runtime: DeviceRuntime) -> Any:
    """Computes at once what the host waits for: numbers and truth values."""
    runtime.synchronize(runtime.stream)
    given = dict(enumerate(args)) | dict(kwargs)
    blocks = list(_regions(given.values()))
    runtime.hazards.launch(
        runtime.stream.index, _name(operator), blocks, blocks if operator.namespace == "c10d" else ()
    )
    with torch.no_grad():
        return operator(*_map(EmulatedTensor, _backing, args), **_map(EmulatedTensor, _backing, kwargs))


def _after_waiting(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], runtime: DeviceRuntime) -> Any:
    """Computes at once an operator the shapes of whose results depend on data.

    Raises:
        RuntimeError: the device computes no values.
    """
    if not runtime.scheduler.computes:
        raise RuntimeError(
            f"the shape of the result of {operator} depends on values, and none are computed in virtual time "
            "(use --device emulated, or give all results shapes that do not depend on values)"
        )
    runtime.synchronize(runtime.stream)
    with torch.no_grad():
        return _map(torch.Tensor, lambda result: to_device(result, runtime), operator(*args, **kwargs))


def to_device(source: torch.Tensor, runtime: DeviceRuntime) -> EmulatedTensor:
    """Copies a tensor of the host to the device."""
    dense = source.detach().contiguous()
    made = new_tensor(Form(tuple(dense.shape), tuple(dense.stride()), dense.dtype), runtime)
    made.copy_(dense)
    return made


def _to_host(source: EmulatedTensor, non_blocking: bool) -> torch.Tensor:
    runtime, real = source.runtime, source.backing
    works = () if runtime.costs is None else runtime.costs.copy(real.nbytes)
    target = torch.empty_like(real)

    def copy() -> None:
        target.copy_(real)

    runtime.launch("copy to the host", [region_of(source)], [], copy, works)
    if not non_blocking:
        runtime.synchronize(runtime.stream)
        return target
    pending: PendingHostTensor = torch.Tensor._make_subclass(PendingHostTensor, target)
    pending.backing, pending.runtime = target, runtime
    pending.writer = runtime.hazards.last(runtime.stream.index, "copy to the host")
    return pending


def new_tensor(form: Form, runtime: DeviceRuntime) -> EmulatedTensor:
    """Returns a tensor of a form in memory of the device, which holds whatever was there."""
    memory = runtime.allocate(form.bytes)
    real = torch.empty(0, dtype=form.dtype).set_(memory.block.storage, 0, form.shape, form.strides)
    return EmulatedTensor.wrap(real, memory, runtime)


def _backing(tensor: EmulatedTensor) -> torch.Tensor:
    return tensor.backing


def _staged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.backing if isinstance(tensor, EmulatedTensor) else tensor.detach().clone()


def _same_memory(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.backing if isinstance(tensor, EmulatedTensor) else tensor.detach()


def region_of(tensor: EmulatedTensor) -> Region:
    """Returns the memory of a tensor."""
    backing = tensor.backing
    start = int(backing.storage_offset()) * backing.itemsize
    return Region(tensor.memory.block, start, start + form_of(backing).bytes)


def _regions(values: Iterable[Any]) -> set[Region]:
    return {region_of(x) for value in values for x in tensors_in(value) if isinstance(x, EmulatedTensor)}


def _check_places(operator: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Raises where a GPU would: an operator reads tensors of the host other than numbers."""
    if operator in _HOST_INDICES:
        return
    in_backward = torch._C._current_graph_task_id() != -1
    for tensor in tensors:
        if not isinstance(tensor, EmulatedTensor) and tensor.dim():
            # Zeros that torch's backward of an operator creates lie on the host: it takes the device for the CPU.
            if in_backward and not tensor.any():
                continue
            raise RuntimeError(
                f"{operator} got tensors on {TYPE} and on the host, of shape {tuple(tensor.shape)} (move it with .to)"
            )


def _map(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """Changes all values of a kind in nested lists, tuples and values of mappings."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        changed = [_map(kind, change, item) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    if isinstance(value, dict):
        return {name: _map(kind, change, item) for name, item in value.items()}
    return value


def _name(operator: Any) -> str:
    return str(operator).removeprefix("aten.").removesuffix(".default")
