"""The command ``deeppool``, run in the process of the tests, which has torch loaded already."""

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output; Infinity and NaN are not JSON."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Command = Callable[..., Outcome]


@pytest.fixture
def deeppool(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command with some arguments."""

    def run(*arguments: object) -> Outcome:
        from deeppool.cli.app import run_command

        monkeypatch.setattr(sys, "argv", ["deeppool", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            run_command()
        return Outcome(int(end.value.code or 0), *capfd.readouterr())

    return run
