"""``deeppool diff``, ``explain`` and ``replan``: what they print, and what they save."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import deeppool as dp
from deeppool.cli.app import app
from deeppool.cluster.cluster import Cluster, Link, find_cluster
from deeppool.errors import DeeppoolError
from tests.planning.replanning.test_profile_correction import run_with
from tests.strategies import make_graph, profile_from_times

LINK = Link(1e9, 0.0, "made by hand")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan in which two layers take one of two GPUs each, a run in which the first takes twice as long, and more."""
    folder = tmp_path_factory.mktemp("files")
    # 1.8 ms on one GPU are 0.9 + 1 ms on two; the second layer has no gradients and splits for free.
    graph = make_graph([(), (0,)], [(), (0,)], [10**6, 0])
    profile = profile_from_times(graph, [lambda b: 1.8e-3 / 16 * b, lambda b: 1e-3 / 16 * b], (1, 8, 16))
    cluster = Cluster(2, "made by hand", 2, LINK, LINK)
    made = dp.plan(profile, cluster, 16, 2.0)
    dp.save(profile, folder / "profile.json")
    dp.save(made, folder / "plan.json")
    dp.save(dp.plan(profile, cluster, 16, 1.0), folder / "limit1.json")
    dp.save(run_with(made), folder / "as_planned.json")
    dp.save(run_with(made, lambda stage: (2.0, 2.0) if stage == 0 else (1.0, 1.0)), folder / "slow.json")
    dp.save(replace(made, graph_fingerprint="other"), folder / "other.json")
    return folder


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(*arguments: object) -> str:
    """The error; main makes one line of it, as of any command's (tests/cli/test_cli.py)."""
    outcome = command(*arguments)
    assert outcome.stdout == ""
    assert isinstance(outcome.exception, DeeppoolError), outcome.exception
    return str(outcome.exception)


def test_diff_says_what_changed(files: Path) -> None:
    outcome = command("diff", files / "limit1.json", files / "plan.json")
    assert outcome.exit_code == 0
    changes = dp.diff(dp.load(files / "limit1.json"), dp.load(files / "plan.json"))
    assert outcome.stdout == changes.explain() + "\n"
    assert "amplification_limit" in outcome.stdout


def test_diff_json_is_one_object(files: Path) -> None:
    outcome = command("diff", files / "limit1.json", files / "plan.json", "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    found = json.loads(outcome.stdout)
    assert found["format"] == "deeppool/diff"
    assert found["request"] == [{"name": "amplification_limit", "before": 1.0, "after": 2.0}]


def test_diff_refuses_plans_of_different_graphs(files: Path) -> None:
    assert "the plans are of different graphs" in refused("diff", files / "plan.json", files / "other.json")


def test_diff_of_other_kinds_lists_the_fields_that_differ_the_largest_change_first(files: Path, tmp_path: Path) -> None:
    before = find_cluster("dgx-a100", 8)
    dp.save(before, tmp_path / "before.json")
    slower = replace(before.inside, latency=2 * before.inside.latency)
    dp.save(replace(before, gpus=10, inside=slower), tmp_path / "after.json")
    found = json.loads(command("diff", tmp_path / "before.json", tmp_path / "after.json", "--json").stdout)
    assert found["format"] == "deeppool/field-changes"
    changed = {change["path"]: (change["before"], change["after"]) for change in found["changes"]}
    assert changed == {"gpus": (8, 10), "inside.latency": (before.inside.latency, slower.latency)}
    text = command("diff", tmp_path / "before.json", tmp_path / "after.json").stdout
    assert text.index("inside.latency") < text.index("gpus: 8 → 10  (+25 %)")
    assert "a cluster and a plan cannot be compared" in refused("diff", tmp_path / "before.json", files / "plan.json")


def test_show_prints_every_record_and_writes_a_page_that_loads_nothing(files: Path, tmp_path: Path) -> None:
    made, page = dp.load(files / "plan.json"), tmp_path / "page.html"
    assert command("show", files / "plan.json").stdout == made.explain() + "\n"
    outcome = command("show", files / "plan.json", files / "slow.json", "--html", page)
    assert outcome.stdout.count(str(files)) == 2
    html = page.read_text()
    assert html.count("<section>") == html.count("Plotly.newPlot(") == 2
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", html)
    both = json.loads(command("show", files / "plan.json", files / "slow.json", "--json").stdout)
    assert [record["format"] for record in both["records"]] == ["deeppool/plan", "deeppool/run"]


def test_a_run_is_judged_by_its_plan_where_both_are_shown(files: Path, tmp_path: Path) -> None:
    made, run = dp.load(files / "plan.json"), dp.load(files / "slow.json")
    seconds = made.iteration_time
    run = replace(run, model=made.model, ranks=made.gpus, plan_iteration_time=seconds, plan_update_time=seconds / 10)
    dp.save(run, tmp_path / "run.json")
    alone = command("show", tmp_path / "run.json").stdout
    assert "DDP was not measured (the run's plan predicts it: deeppool show PLAN RUN)" in alone
    both = command("show", files / "plan.json", tmp_path / "run.json").stdout
    assert "DDP was not measured" not in both
    assert f"is predicted to take {made.comparison.gain:.2f} times as long as the plan" in both
    assert f"deeppool replan {files / 'plan.json'} PROFILE RUN" in both
    # Another plan's prediction says nothing of it.
    dp.save(replace(run, plan_iteration_time=2 * seconds), tmp_path / "run.json")
    assert "DDP was not measured" in command("show", files / "plan.json", tmp_path / "run.json").stdout


def test_show_refuses_a_file_of_another_kind_before_it_writes(files: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"format": "another"}')
    assert "is it a file of deeppool?" in refused("show", tmp_path / "other.json", "--html", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_does_not_replace_the_record_that_it_shows(files: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(files / "plan.json")
    before = (files / "plan.json").read_bytes()
    for page in (files / "plan.json", tmp_path / "link.json"):
        told = refused("show", files / "slow.json", files / "plan.json", "--html", page)
        assert f"--html {page} would replace a file that this command reads" in told
    assert (files / "plan.json").read_bytes() == before


def test_explain_without_a_layer_is_the_plans_own_table(files: Path) -> None:
    outcome = command("explain", files / "plan.json")
    assert (outcome.exit_code, outcome.stdout) == (0, dp.load(files / "plan.json").explain() + "\n")


def test_explain_of_a_layer_prices_every_count(files: Path) -> None:
    outcome = command("explain", files / "plan.json", "layer0")
    assert outcome.exit_code == 0
    assert "layer0" in outcome.stdout
    assert "layer1" not in outcome.stdout
    assert "the plan's" in outcome.stdout


def test_explain_writes_a_plan_for_model_explorer(files: Path, tmp_path: Path) -> None:
    outcome = command("explain", files / "plan.json", "--model-explorer", tmp_path / "graph.json")
    assert [Path(name).name for name in outcome.stderr.strip().removeprefix("wrote ").split(", ")] == [
        "graph.json",
        "graph.gpus.json",
        "graph.amplification.json",
        "graph.time.json",
    ]
    counts = json.loads((tmp_path / "graph.gpus.json").read_text())
    (results,) = [data["results"] for data in counts.values()]
    plan = json.loads((files / "plan.json").read_text())
    assert [each["value"] for each in results.values()] == [layer["gpu_count"] for layer in plan["layers"]]


def test_explain_json_prices_every_count_as_the_plans_own_json_does(files: Path) -> None:
    plan = json.loads(
        command(
            *("plan", files / "profile.json", "--gpus", 2, "--global-batch", 16, "--cluster", "loopback", "--json")
        ).stdout
    )
    assert all(len(layer["alternatives"]) == 1 for layer in plan["layers"])
    found = json.loads(command("explain", files / "plan.json", "--json").stdout)
    assert [layer["name"] for layer in found["layers"]] == ["layer0", "layer1"]
    assert [[price["gpu_count"] for price in layer["counts"]] for layer in found["layers"]] == [[1, 2], [1, 2]]
    one = json.loads(command("explain", files / "plan.json", "layer1", "--json").stdout)
    assert one["layers"] == found["layers"][1:]


def test_explain_refuses_an_unknown_layer(files: Path) -> None:
    assert "no layer 'layer7' among the 2 layers" in refused("explain", files / "plan.json", "layer7")


def test_replan_prints_corrections_changes_and_gain_and_saves_the_new_plan(files: Path, tmp_path: Path) -> None:
    outcome = command(
        *("replan", files / "plan.json", files / "profile.json", files / "slow.json", "-o", tmp_path / "new.json")
    )
    assert outcome.exit_code == 0, outcome.exception
    # 3.6 + 0.5 ms as it is, 1.8 + 1 + 0.5 ms on two GPUs.
    assert "gain 800 us (+19.5 %); change to the new plan" in " ".join(outcome.stdout.split())
    assert "x2.00" in outcome.stdout
    saved = dp.load(tmp_path / "new.json")
    assert [layer.gpu_count for layer in saved.layers] == [2, 2]
    # The new plan can be explained, and compared with the old one.
    assert all(layer.alternatives for layer in saved.layers)
    assert command("explain", tmp_path / "new.json", "layer0").exit_code == 0
    assert command("diff", files / "plan.json", tmp_path / "new.json").exit_code == 0


@pytest.mark.parametrize(("run", "options"), [("as_planned", ()), ("slow", ("--hysteresis", 0.2))])
def test_replan_saves_the_plan_as_it_was_where_it_stays(
    run: str, options: tuple[object, ...], files: Path, tmp_path: Path
) -> None:
    outcome = command(
        *("replan", files / "plan.json", files / "profile.json", files / f"{run}.json", *options),
        *("-o", tmp_path / "new.json", "--json"),
    )
    found = json.loads(outcome.stdout)
    assert found["format"] == "deeppool/replan"
    assert found["recommended"] is False
    assert (tmp_path / "new.json").read_text() == (files / "plan.json").read_text()


def test_replan_refuses_files_that_do_not_belong_together(files: Path, tmp_path: Path) -> None:
    others = files / "profile.json", files / "slow.json", "-o", tmp_path / "new.json"
    assert "give the profile that the plan was made of" in refused("replan", files / "other.json", *others)
    assert not (tmp_path / "new.json").exists()


def test_replan_says_that_it_cannot_save_before_it_reads(files: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    message = refused("replan", absent, absent, absent, "-o", tmp_path / "nowhere" / "new.json")
    assert "there is no folder" in message
