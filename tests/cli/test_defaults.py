"""An option has the default of the argument of Python that it stands for."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import typer

import deeppool as dp
from deeppool.cli.app import app

COMMANDS: Any = typer.main.get_command(app)
FUNCTIONS = {
    "advise": dp.advise,
    "calibrate": dp.calibrate,
    "check": dp.check,
    "estimate": dp.estimate,
    "frontier": dp.frontier,
    "interference": dp.measure_interference,
    "network": dp.measure_network,
    "plan": dp.plan,
    "profile": dp.profile,
    "replan": dp.replan,
    "run": dp.launch,
    "scaling": dp.scaling,
    "simulate": dp.simulate,
    "train": dp.train,
}


def unlike(options: dict[str, Any], function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Defaults of options that are not those of the function; None leaves the function's own in place."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if name not in options or default is inspect.Parameter.empty or options[name] is None:
            continue
        given = ",".join(map(str, default)) if isinstance(default, tuple) else default
        if options[name] != given:
            found[name] = options[name], default
    return found


@pytest.mark.parametrize("command", FUNCTIONS)
def test_the_defaults_of_a_command_are_those_of_python(command: str) -> None:
    options = {option.name: option.default for option in COMMANDS.commands[command].params}
    assert unlike(options, FUNCTIONS[command]) == {}


def test_a_default_that_differs_is_seen() -> None:
    assert unlike({"seconds": 10.0, "steps": None}, lambda seconds=30.0, steps=5: None) == {"seconds": (10.0, 30.0)}
    assert unlike({"sizes": "1,2"}, lambda sizes=(1, 2, 4): None) == {"sizes": ("1,2", (1, 2, 4))}
