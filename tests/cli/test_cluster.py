"""``deeppool cluster``: help, and what is refused before anything is looked for."""

import pytest

from deeppool.cli.cluster import cluster
from tests.command import Command

COMMANDS = sorted(command.name or command.callback.__name__ for command in cluster.registered_commands)


@pytest.fixture
def cluster_command(deeppool: Command, monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Runs a command of the group: exit code, standard output and error, each in one line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, str, str]:
        code, out, err = deeppool("cluster", *arguments)
        return code, " ".join(out.split()), " ".join(err.split())

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, cluster_command) -> None:
    code, out, err = cluster_command(command, "--help")
    assert (code, err) == (0, "")
    assert f"Example: deeppool cluster {command}" in out


def test_help_names_every_command_in_the_order_of_their_use(cluster_command) -> None:
    code, out, _ = cluster_command("--help")
    assert code == 0
    found = [out.index(f"deeppool cluster {command}") for command in ("start", "submit", "status", "cancel", "stop")]
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("command", "phrase"), [((), "on cores, one background job"), (("submit",), "a cluster with GPUs refuses it")]
)
def test_help_says_where_background_jobs_run(command: tuple[str, ...], phrase: str, cluster_command) -> None:
    code, out, _ = cluster_command(*command, "--help")
    assert code == 0
    assert phrase in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["submit"], "give a PLAN, or --background MODEL"),
        (["submit", "plan.json", "--background", "resnet18"], "give a PLAN, or --background MODEL"),
        (["submit", "plan.json"], "a foreground job needs --steps"),
        (["submit", "plan.json", "--steps", "1", "--gpus", "2"], "--gpus is for a background job"),
        (["submit", "plan.json", "--steps", "1", "--input-shape", "3"], "--input-shape is for a background job"),
        (["submit", "plan.json", "--steps", "1", "--profile", "p.json"], "--profile needs --min-ranks"),
        *(
            (["submit", "--background", "resnet18", option, value], f"{option} is for a foreground job")
            for option, value in {
                "--checkpoints": "folder",
                "--restarts": "1",
                "--min-ranks": "1",
                "--profile": "profile.json",
            }.items()
        ),
        (
            ["submit", "--background", "resnet18", "--input-shape", "a=1,b=2"],
            "--input-shape of a background job is one",
        ),
    ],
)
def test_bad_usage_is_reported(arguments: list[str], phrase: str, cluster_command) -> None:
    code, _, err = cluster_command(*arguments)
    assert code == 2
    assert phrase in err.replace("│ ", "")


@pytest.mark.parametrize("arguments", [["status"], ["cancel", "3"], ["stop"]])
def test_without_a_cluster_the_error_says_how_to_start_one(arguments: list[str], cluster_command) -> None:
    assert cluster_command(*arguments) == (1, "", "error: no cluster runs (deeppool cluster start)")
