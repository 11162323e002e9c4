"""Checks that arguments of the public API have the types that they are annotated with.

Bounds of numbers are left to those who know them (:mod:`deeppool.base.number_checks`). Nor is checked what is annotated
for type checkers only: protocols, and what is ``Annotated`` with the reason.

No library does this: typeguard's errors hold neither the value nor the types but in their text, beartype looks at one
item of a list, and pydantic refuses NumPy's numbers and arrays and makes a schema of every record in an annotation.
"""

import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    ParamSpecArgs,
    ParamSpecKwargs,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from deeppool.base.number_checks import as_real, as_whole, shown
from deeppool.errors import InvalidValueError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PUBLIC = ("Cluster", "Conditions", "JobCosts", "TraceJob", "TrainingJob", "WorkloadTrace")
MAKERS = {name: f"dp.{name}" for name in PUBLIC} | {
    "Advice": "dp.advise",
    "CapturedModel": "dp.capture",
    "CrossoverComparison": "dp.compare_orders",
    "Interference": "dp.measure_interference",
    "MeasuredTransfers": "dp.measure_transfers",
    "MeasuredWays": "dp.compare_techniques",
    "Plan": "dp.plan",
    "Profile": "dp.profile",
    "RunRecord": "dp.launch",
    "StepsToAccuracy": "dp.find_steps",
    "Timeline": "dp.simulate(plan).timeline",
    "TransferComparison": "dp.compare_transfers",
}
"""What makes the values of a type."""
WORDS: Mapping[Any, str] = {
    Callable: "a function",
    Mapping: "a mapping",
    NoneType: "None",
    Path: "a path",
    Sequence: "a list",
    bool: "True or False",
    float: "a number",
    int: "a whole number",
    os.PathLike: "a path",
    tuple: "a list",
}
"""What messages call a type, if not by its name."""
_UNCHECKED = (Annotated, Any, object, inspect.Parameter.empty)
_VALUES: Mapping[Any, Callable[[Any], bool]] = {
    bool: lambda value: type(value).__name__ == "bool",  # Python's or NumPy's
    float: lambda value: as_real(value) is not None,
    int: lambda value: as_whole(value) is not None,
}
"""Whether a value is of a type whose values are not only its instances."""


def typed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a public function: it refuses arguments of other types, and says how to get one of the right type."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        signature = _signature(function)
        try:
            given = signature.bind(*arguments, **options).arguments
        except TypeError:  # the call itself says which argument is missing or unknown
            given = {}
        for name, value in given.items():
            annotation, kind = signature.parameters[name].annotation, signature.parameters[name].kind
            several = GenericAlias(tuple, (annotation, ...))
            if not isinstance(annotation, ParamSpecArgs | ParamSpecKwargs):  # those are of another function
                _check(name, value, several if kind is kind.VAR_POSITIONAL else annotation)
        return function(*arguments, **options)

    return call


def check_fields(record: Any) -> None:
    """Checks the types of the fields of a dataclass, as :func:`typed` does those of arguments."""
    for field in dataclasses.fields(record):
        _check(field.name, getattr(record, field.name), field.type)


_signature = functools.cache(inspect.signature)


def _check(name: str, value: Any, annotation: Any) -> None:
    if (wrong := _wrong(name, value, annotation)) is not None:
        name, value, kinds = wrong
        *others, last = dict.fromkeys(map(_described, kinds))
        expected = " or ".join([", ".join(others), last] if others else [last])
        raise InvalidValueError(f"{name} must be {expected}, got {_given(value)}{_hint(value, kinds)}")


def _wrong(name: str, value: Any, annotation: Any) -> tuple[str, Any, tuple[Any, ...]] | None:
    """Returns the argument, or the item of it, that has another type, with the types that it may have."""
    kinds = _kinds(annotation)
    if not all(map(_is_checked, kinds)):
        return None
    found = name, value, kinds
    for kind in kinds:
        if _matches(value, kind):
            inside = next(filter(None, itertools.starmap(_wrong, _items(name, value, kind))), None)
            if inside is None:
                return None
            found = inside
    return found


@functools.cache
def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


@functools.cache
def _is_checked(kind: Any) -> bool:
    known = get_origin(kind) or kind
    protocol = getattr(known, "_is_protocol", False) and not getattr(known, "_is_runtime_protocol", False)
    return known is Literal or (isinstance(known, type) and known not in _UNCHECKED and not protocol)


def _matches(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever the items in it."""
    known = get_origin(kind) or kind
    if known is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if known in (Sequence, tuple):
        # Sets and arrays are taken, too; what can be read only once, as a generator, is not.
        is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return is_list and getattr(value, "ndim", 1) > 0
    if known in _VALUES:
        return _VALUES[known](value)
    return isinstance(value, str | os.PathLike if issubclass(known, os.PathLike) else known)


def _items(name: str, value: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the items of a list or mapping: name, value and annotation."""
    known, parts = get_origin(kind), get_args(kind)
    if known is Mapping:
        for key, item in value.items():
            yield f"a key of {name}", key, parts[0]
            yield f"{name}[{key!r}]", item, parts[1]
    elif known in (Sequence, tuple) and parts[1:] in ((), (...,)):
        for place, item in enumerate(value):
            yield f"{name}[{place}]", item, parts[0]


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
