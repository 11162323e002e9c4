"""The commands of the quick starts, typed in their order: a small model in place of a large one, and little time."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.test_cli import Command, deeppool  # noqa: F401  (a fixture)
from tests.docs.test_guides import CHECKOUT, commands

MODEL = "examples.two_branch:two_branch"
LARGE = {"vgg16", "inception_v3", "resnet50", "resnet18", "gpt2"}
"""Models of the pages, in whose place the small one is used."""
SHORTER = {
    "--input-shape": "3,32,32",
    "--batch-sizes": "1,2,4",
    "--global-batch": "8",
    "--seconds": "1",
    "--steps": "4",
}
LAYER = {"classifier.0": "head"}
OWN_PROFILE = 'dp.save(dp.profile(job().capture(), batch_sizes=[8, 16, 32]), "own.json")'
"""Of the laptop's page, before its last step."""


def quick(words: list[str]) -> list[str]:
    """The same command, on a small model and for a moment."""
    made = [LAYER.get(word, MODEL if word in LARGE else word) for word in words]
    for place, option in enumerate(made[:-1]):
        made[place + 1] = SHORTER.get(option, made[place + 1])
    # What has a shape of its own by name.
    if words[0] in ("advise", "profile", "estimate") and MODEL in made and "--input-shape" not in made:
        made += ["--input-shape", "3,32,32"]
    return made


def commands_of(page: str) -> list[list[str]]:
    """Those in blocks: spans name a command in a sentence."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    return list(commands("".join(re.findall(r"^```\n.*?^```\n", text, flags=re.DOTALL | re.MULTILINE))))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(CHECKOUT)
    (tmp_path / "examples").symlink_to(CHECKOUT / "examples")
    return tmp_path


def run_all(typed: list[list[str]], deeppool: Command) -> dict[str, str]:  # noqa: F811
    """Runs commands one after the other; returns what they print, by what was typed."""
    printed = {}
    for words in typed:
        outcome = deeppool(*quick(words))
        assert outcome.code == 0, f"deeppool {shlex.join(quick(words))}\n{outcome.err}"
        printed[shlex.join(words)] = outcome.out
    return printed


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_laptops_quick_start_runs_to_its_end(deeppool: Command, folder: Path) -> None:  # noqa: F811
    page = (CHECKOUT / "docs/quick-start-laptop.md").read_text(encoding="utf-8")
    typed = [words for words in commands_of("docs/quick-start-laptop.md") if words[0] != "lab"]
    train = next(place for place, words in enumerate(typed) if words[0] == "plan" and words[1] == "own.json")
    run_all(typed[:train], deeppool)
    assert OWN_PROFILE in page
    import deeppool as dp
    from examples.own_training import job

    # Batches that the small global batch needs.
    exec(OWN_PROFILE.replace("[8, 16, 32]", "[4, 8]"), {"dp": dp, "job": job})
    run_all(typed[train:], deeppool)
    assert {"advice.html", "run.json", "run.html", "checkpoints"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_quick_start_with_8_gpus_does_without_a_gpu_runs(
    deeppool: Command,  # noqa: F811
    folder: Path,
) -> None:
    typed = commands_of("docs/quick-start-8-gpus.md")
    measured = next(place for place, words in enumerate(typed) if words[0] == "env")
    printed = run_all(typed[: measured + 1], deeppool)
    assert len(printed) >= 6
    assert {"advice.html", "inception.json", "estimated.json", "timeline.json"} <= {
        path.name for path in folder.iterdir()
    }
    profile = next(words for words in typed if words[0] == "profile")
    outcome = deeppool(*quick(profile))
    import torch

    if not torch.cuda.is_available():
        assert outcome.code == 1
        assert "cuda was requested" in outcome.err and "deeppool env" in outcome.err


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_the_first_command_of_the_readme_prints_what_the_readme_shows(deeppool: Command) -> None:  # noqa: F811
    """The whole command, as typed: its numbers are estimates, so they are the same everywhere."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    first, *_ = commands_of("README.md")
    shown = re.findall(r"^```\n(inception_v3, global batch 32.*?)^```", text, flags=re.DOTALL | re.MULTILINE)[0]
    outcome = deeppool(*first)
    assert outcome.code == 0, outcome.err
    for line in shown.splitlines():
        words = line.replace("…", "").split()
        assert " ".join(words) in " ".join(outcome.out.split()), line
