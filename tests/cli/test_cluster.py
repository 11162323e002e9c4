"""``deeppool cluster``: help, and what is refused before anything is looked for."""

import sys

import pytest

from deeppool.cli import main
from deeppool.cli.cluster import cluster

COMMANDS = sorted(command.name or command.callback.__name__ for command in cluster.registered_commands)


@pytest.fixture
def deeppool(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Runs the command in this process: exit code, standard output and error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deeppool", "cluster", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        output = capfd.readouterr()
        return int(end.value.code or 0), " ".join(output.out.split()), " ".join(output.err.split())

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, deeppool) -> None:
    code, out, err = deeppool(command, "--help")
    assert (code, err) == (0, "")
    assert f"Example: deeppool cluster {command}" in out


def test_help_names_every_command_in_the_order_of_their_use(deeppool) -> None:
    code, out, _ = deeppool("--help")
    assert code == 0
    found = [out.index(f"deeppool cluster {command}") for command in ("start", "submit", "status", "cancel", "stop")]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["submit"], "give a PLAN, or --background MODEL"),
        (["submit", "plan.json", "--background", "resnet18"], "give a PLAN, or --background MODEL"),
        (["submit", "plan.json"], "a foreground job needs --steps"),
        (
            ["submit", "--background", "resnet18", "--input-shape", "a=1,b=2"],
            "--input-shape of a background job is one",
        ),
    ],
)
def test_bad_usage_is_reported(arguments: list[str], phrase: str, deeppool) -> None:
    code, _, err = deeppool(*arguments)
    assert code == 2
    assert phrase in err.replace("│ ", "")


@pytest.mark.parametrize("arguments", [["status"], ["cancel", "3"], ["stop"]])
def test_without_a_cluster_the_error_says_how_to_start_one(arguments: list[str], deeppool) -> None:
    assert deeppool(*arguments) == (1, "", "error: no cluster runs (deeppool cluster start)")
