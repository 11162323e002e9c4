"""The commands of all pages, typed in their order: a small model in place of a large one, and little time."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.device.datasheet import find_gpu
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.simulation.device.interference import Arrangement, Interference
from examples import own_training
from tests.command import Command
from tests.docs.markdown import blocks
from tests.docs.test_guides import CHECKOUT, PAGES, commands

MODEL = "examples.two_branch:two_branch"
LARGE = {"vgg16", "inception_v3", "resnet50", "resnet18", "gpt2"}
"""Models of the pages, in whose place the small one is used."""
SHORTER = {
    "--input-shape": "3,32,32",
    "--batch-sizes": "1,2,4",
    "--global-batch": "8",
    "--seconds": "0.5",
    "--steps": "4",
    "--min-ranks": "1",
    "--min-speedup": "1",
}
LAYER = {"classifier.0": "head"}
PLACEHOLDERS = {
    "PROFILE": "profile.json",
    "package.module:job": "examples.own_training:job",
    "examples/workload.json": "few-jobs.json",
}
LESS = {
    "network": ("--seconds", "1", "--sizes", "4,65536,16777216"),
    "profile": ("--seconds", "0.1"),
    "run": ("--seconds", "0.5"),
    "plan": ("--gpus", "2", "--global-batch", "8"),
}
"""Options where a page does not show them: for a short measurement, and of a plan where dots stand for them."""
ELSEWHERE = {
    "lab": "tests/browser/test_lab_command.py",
    "evaluate": "tests/notebooks/test_notebook_runs.py",
    "nightly": "tests/evaluation/test_nightly.py",
    "interference": "tests/cli/test_interference.py",
    "calibrate": "tests/profiling/calibrate/test_calibrate.py",
    "cluster start": "tests/coordinator/test_cluster.py",
    "cluster submit": "tests/coordinator/test_cluster.py",
    "cluster status": "tests/coordinator/test_cluster.py",
    "cluster cancel": "tests/coordinator/test_cluster.py",
    "cluster stop": "tests/coordinator/test_lost_ray.py",
}
"""What takes minutes or does not end by itself, and the tests that run it."""
GUIDES = ["docs/cluster.md", "docs/command-line.md", "docs/emulated.md", "docs/planning.md", "docs/training.md"]
STARTS = ["README.md", "docs/index.md", "docs/install.md", "docs/quick-start-8-gpus.md", "docs/quick-start-laptop.md"]
"""Pages with commands in blocks. The first of README, all of the index, and `env` are commands of the quick starts."""
OWN_FILES = {"docs/training.md": {"own-plan.json": "plan.json", "own.json": "profile.json"}}
"""Where a page's plan and profile are of the job that it trains."""
STEPS = dp.StepsTable("mine", "trained", ((4, 800), (64, 100)))
PAIRS = Interference(
    "a device",
    "2026-11-22",
    "by hand",
    (1.0,),
    (1e-3,),
    tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest")),
)
OWN_PROFILE = 'dp.save(dp.profile(job().capture(), batch_sizes=[8, 16, 32]), "own.json")'
"""Of the laptop's page, before its last step."""


def quick(words: list[str]) -> list[str]:
    """The same command, on a small model and for a moment."""
    made = [LAYER.get(word, MODEL if word in LARGE else PLACEHOLDERS.get(word, word)) for word in words]
    for place, option in enumerate(made[:-1]):
        made[place + 1] = SHORTER.get(option, made[place + 1])
    # What has a shape of its own by name.
    if words[0] in ("advise", "profile", "estimate") and MODEL in made and "--input-shape" not in made:
        made += ["--input-shape", "3,32,32"]
    # A comparison measures nothing.
    less = () if "--compare" in made else LESS.get(words[0], ())
    return made if any(option in made for option in less[::2]) else [*made, *less]


def first_run(page: str) -> list[list[str]]:
    """The commands of a guide that run here and not, as the same words, on the laptop's page or on a guide before."""
    before = ["docs/quick-start-laptop.md", *GUIDES[: GUIDES.index(page)]]
    done = [quick(words) for earlier in before for words in commands_of(earlier)]
    return [words for words in commands_of(page) if place_of(words) is None and quick(words) not in done]


def commands_of(page: str) -> list[list[str]]:
    """Those in blocks: spans name a command in a sentence."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    return list(commands("".join(f"```\n{block}```\n" for block in blocks(text))))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(CHECKOUT)
    (tmp_path / "examples").symlink_to(CHECKOUT / "examples")
    return tmp_path


def run_all(typed: list[list[str]], deeppool: Command) -> dict[str, str]:
    """Runs commands one after the other; returns what they print, by what was typed."""
    printed = {}
    for words in typed:
        outcome = deeppool(*quick(words))
        assert outcome.code == 0, f"deeppool {shlex.join(quick(words))}\n{outcome.err}"
        printed[shlex.join(words)] = outcome.out
    return printed


@pytest.mark.processes
def test_the_laptops_quick_start_runs_to_its_end(deeppool: Command, folder: Path) -> None:
    page = (CHECKOUT / "docs/quick-start-laptop.md").read_text(encoding="utf-8")
    typed = [words for words in commands_of("docs/quick-start-laptop.md") if words[0] != "lab"]
    train = next(place for place, words in enumerate(typed) if words[0] == "plan" and words[1] == "own.json")
    run_all(typed[:train], deeppool)
    assert OWN_PROFILE in page
    import deeppool as dp
    from examples.own_training import job

    # Batches that the small global batch needs, for a moment.
    exec(OWN_PROFILE.replace("[8, 16, 32]", "[4, 8], seconds=0.1"), {"dp": dp, "job": job})
    run_all(typed[train:], deeppool)
    assert {"advice.html", "run.json", "run.html", "checkpoints"} <= {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guides take as given: files of the small model, and of what is measured elsewhere."""
    here = tmp_path_factory.mktemp("given")
    (here / "cluster_log.csv").write_text(
        "job_id,gpu_num,submit_time,duration\n1,2,2020-06-09 18:00:00,5\n2,1,2020-06-09 18:00:01,5\n"
    )
    captured = dp.capture(MODEL, (3, 32, 32))
    measured = dp.profile(captured, device="cpu", batch_sizes=[1, 2, 4, 8], seconds=0.1)
    # The noise of a machine that had time for more iterations.
    profile = replace(measured, checks=(IterationCheck(4, 0.012, 0.012, 0.05, 9),))
    for name in ("profile", "vgg16", "newer", "resnet18", "resnet50"):
        dp.save(profile, here / f"{name}.json")
    for name, ranks, limit in (("plan", 2, 2.0), ("plan8", 8, 2.0), ("limit2", 2, 2.0), ("limit4", 2, 4.0)):
        dp.save(dp.plan(profile, dp.find_cluster("loopback", ranks), 8, limit), here / f"{name}.json")
    dp.save(dp.find_cluster("dgx-h100", 8), here / "cluster.json")
    workload = dp.load(CHECKOUT / "examples" / "workload.json")
    dp.save(replace(workload, jobs=workload.jobs[:4]), here / "few-jobs.json")
    # In place of a calibration.
    dp.save(find_gpu("l4"), here / "machine.json")
    dp.save(STEPS, here / "steps.json")
    dp.save(PAIRS, here / "pairs.json")
    job = own_training.job()
    own = dp.profile(job.capture(), batch_sizes=[4, 8], seconds=0.1)
    dp.save(own, here / "own.json")
    dp.save(dp.plan(own, dp.find_cluster("loopback", 2), 8), here / "own-plan.json")
    run = dp.launch(dp.load(here / "plan.json"), background=MODEL, seconds=0.5)
    for name in ("run", "newer-run"):
        dp.save(run, here / f"{name}.json")
    return here


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("page", GUIDES)
def test_every_command_of_a_guide_runs(page: str, deeppool: Command, folder: Path, files: Path) -> None:
    for given in files.iterdir():
        shutil.copy(given, folder)
    for own, name in OWN_FILES.get(page, {}).items():
        shutil.copy(files / own, folder / name)
    run_all(first_run(page), deeppool)


def place_of(words: list[str]) -> str | None:
    """The test that runs a command; None: here."""
    return ELSEWHERE.get(" ".join(words[:2] if words[0] == "cluster" else words[:1]))


def test_the_commands_of_every_page_are_run() -> None:
    """Pages of commands are listed, and so is each command that runs elsewhere, with a test that is there."""
    pages = {page.relative_to(CHECKOUT).as_posix() for page in PAGES if page.parent.name in (CHECKOUT.name, "docs")}
    # The page of results has commands of benchmarks.
    assert {page for page in pages if commands_of(page)} == {*GUIDES, *STARTS, "docs/results.md"}
    typed = [words for page in (*GUIDES, *STARTS) for words in commands_of(page)]
    assert {place for words in typed if (place := place_of(words))} == set(ELSEWHERE.values())
    assert all((CHECKOUT / place).is_file() for place in ELSEWHERE.values())


@pytest.mark.slow
def test_what_the_quick_start_with_8_gpus_does_without_a_gpu_runs(
    deeppool: Command,
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
def test_the_first_command_of_the_readme_prints_what_the_readme_shows(deeppool: Command) -> None:
    """The whole command, as typed: its numbers are estimates, so they are the same everywhere."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    first, *_ = commands_of("README.md")
    (shown,) = (block for block in blocks(text) if block.startswith("inception_v3, global batch 32"))
    outcome = deeppool(*first)
    assert outcome.code == 0, outcome.err
    for line in shown.splitlines():
        words = line.replace("…", "").split()
        assert " ".join(words) in " ".join(outcome.out.split()), line
