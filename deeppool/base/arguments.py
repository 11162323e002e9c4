"""Checks that arguments of the public API have the types that they are annotated with.

Numbers and names are left to those who know their bounds (numbers: :mod:`deeppool.base.number_checks`). Nor is checked
what is annotated for type checkers only: protocols, and what is ``Annotated`` with the reason.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from deeppool.base.number_checks import shown
from deeppool.errors import InvalidValueError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PUBLIC = ("Cluster", "Conditions", "JobCosts", "TraceJob", "TrainingJob", "WorkloadTrace")
MAKERS = {name: f"dp.{name}" for name in PUBLIC} | {
    "Advice": "dp.advise",
    "CapturedModel": "dp.capture",
    "Interference": "dp.measure_interference",
    "Plan": "dp.plan",
    "Profile": "dp.profile",
    "RunRecord": "dp.launch",
    "StepsToAccuracy": "dp.find_steps",
}
"""What makes the values of a type."""
WORDS: Mapping[Any, str] = {
    Callable: "a function",
    Mapping: "a mapping",
    NoneType: "None",
    Path: "a path",
    Sequence: "a list",
    os.PathLike: "a path",
    tuple: "a list",
}
"""What messages call a type, if not by its name."""
_UNCHECKED = (Annotated, Any, object, int, float, bool, inspect.Parameter.empty)


def typed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a public function: it refuses arguments of other types."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        check_arguments(function, arguments, options)
        return function(*arguments, **options)

    return call


def check_arguments(function: Callable[..., object], arguments: Iterable[Any], options: Mapping[str, Any]) -> None:
    """Checks the types of a call's arguments.

    Raises:
        InvalidValueError: one has another type; the message says how to get the right one.
    """
    signature = inspect.signature(function)
    try:
        given = signature.bind(*arguments, **options).arguments
    except TypeError:  # the call itself says which argument is missing or unknown
        return
    for name, value in given.items():
        _check(name, value, signature.parameters[name].annotation)


def check_fields(record: Any) -> None:
    """Checks the types of the fields of a dataclass, as :func:`check_arguments`."""
    for field in dataclasses.fields(record):
        _check(field.name, getattr(record, field.name), field.type)


def _check(name: str, value: Any, annotation: Any) -> None:
    if (wrong := _wrong(name, value, annotation)) is not None:
        name, value, kinds = wrong
        expected = " or ".join(dict.fromkeys(map(_described, kinds)))
        raise InvalidValueError(f"{name} must be {expected}, got {_given(value)}{_hint(value, kinds)}")


def _wrong(name: str, value: Any, annotation: Any) -> tuple[str, Any, tuple[Any, ...]] | None:
    """Returns the argument, or the item of it, that has another type, with the types that it may have."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if str in kinds and not any(getattr(get_origin(x) or x, "__fspath__", None) for x in kinds):
        return None  # a name
    found = name, value, kinds
    for kind in kinds:
        known, parts = get_origin(kind) or kind, get_args(kind)
        protocol = getattr(known, "_is_protocol", False) and not getattr(known, "_is_runtime_protocol", False)
        if known is Literal:
            known, parts = str, ()
        elif not isinstance(known, type) or known in _UNCHECKED or protocol:
            return None
        of = parts[known is Mapping] if parts else Any
        items: Iterable[tuple[Any, Any]] = ()
        if known in (Sequence, tuple):
            # Sets and arrays are taken, too; what can be read only once, as a generator, is not.
            is_kind = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
            is_kind = is_kind and getattr(value, "ndim", 1) > 0
            if is_kind and parts[1:] in ((), (...,)) and of not in _UNCHECKED:
                items = enumerate(value)
        else:
            is_kind = isinstance(value, str | os.PathLike if issubclass(known, os.PathLike) else known)
            if is_kind and known is Mapping:
                items = value.items()
        inside = next(filter(None, (_wrong(f"{name}[{place!r}]", item, of) for place, item in items)), None)
        if is_kind and inside is None:
            return None
        found = inside or found
    return found


def _described(kind: Any) -> str:
    known = get_origin(kind) or kind
    if known is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return WORDS.get(known) or f"{'an' if known.__name__[0] in 'AEIOUaeiou' else 'a'} {known.__name__}"


def _given(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return f"'{value}'"
    if value is None or isinstance(value, str | int | float):
        return shown(value)
    return f"'{value.__name__}'" if callable(value) and hasattr(value, "__name__") else _described(type(value))


def _hint(value: Any, kinds: Iterable[Any]) -> str:
    """Returns the next step, in brackets: the usual mistakes are the file of a record, and a function that makes it."""
    makers = [MAKERS[name] for name in (getattr(kind, "__name__", "") for kind in kinds) if name in MAKERS]
    if not makers:
        return ""
    is_name = isinstance(value, str) and not Path(value).suffix and ":" not in value  # such as of a model
    if isinstance(value, str | os.PathLike) and not is_name:
        return f" ({f'dp.load({os.fspath(value)!r}) reads a file' if ':' not in str(value) else 'import and call it'})"
    if callable(value) and getattr(value, "__name__", "").isidentifier():
        return f" (give what it returns: {value.__name__}())"
    return f" ({' or '.join(makers)} makes one)"
