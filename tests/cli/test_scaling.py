"""``deeppool scaling``: what goes to standard output and into the file, and how errors are told."""

import json
from functools import partial

import pytest

import deeppool as dp
from deeppool.planning.studies.steps_to_accuracy import NAMED
from tests.strategies import make_graph, profile_from_times

STEPS = dp.StepsTable("mine", "trained", ((4, 800), (64, 100)))


@pytest.fixture
def scaling(deeppool, monkeypatch, tmp_path):
    """Runs ``deeppool scaling`` in a folder with a profile and a table of steps: exit code, output, error."""
    profile = profile_from_times(make_graph([()]), [lambda batch: 1e-3 * batch], (1, 2, 4, 8))
    dp.save(profile, tmp_path / "profile.json")
    dp.save(STEPS, tmp_path / "steps.json")
    monkeypatch.chdir(tmp_path)

    return partial(deeppool, "scaling")


def test_json_is_one_object_with_the_study_that_the_library_makes(scaling):
    code, out, _ = scaling(
        *"profile.json --gpus 6 --global-batch 8 --network 10,1000 --steps-to-accuracy steps.json --json".split()
    )
    found = json.loads(out)
    own = dp.scaling(
        dp.load("profile.json"), STEPS, gpu_counts=(1, 2, 4, 6), bandwidths=(1.25e9, 1.25e11), global_batch=8
    )
    assert (code, found["format"], found["gpu_counts"]) == (0, "deeppool/scaling", [1, 2, 4, 6])
    assert [x["time_to_accuracy"] for x in found["points"]] == [x.time_to_accuracy for x in own.points]
    assert [x["reason"] for x in found["missing"]] == [x.reason for x in own.missing]
    assert (found["steps_name"], found["per_gpu_batch"], found["bandwidths"]) == ("mine", 8, [1.25e9, 1.25e11])


def test_people_get_a_table_and_the_file_is_the_study(scaling):
    code, out, _ = scaling(
        *"profile.json --gpus 4 --global-batch 8 --per-gpu-batch 4 --amplification-limit 1.5 --network-model paper "
        "--network 10 -o study.json".split()
    )
    study = dp.load("study.json")
    assert (code, out.strip()) == (0, study.table())
    assert (study.global_batch, study.per_gpu_batch) == (8, 4)
    assert (study.amplification_limit, study.network_model) == (1.5, "paper")


def test_without_a_file_the_steps_are_an_example_and_say_so(scaling):
    _, out, _ = scaling("profile.json", "--gpus", "2", "--network", "10")
    assert "Steps: an example (round numbers chosen for this example, from no paper and no training)." in out


def test_the_curve_of_a_paper_is_found_by_its_name_and_shown_with_its_source(scaling):
    code, out, _ = scaling(*"profile.json --gpus 2 --network 10 --steps-to-accuracy vgg11-shallue2019 --json".split())
    found, curve = json.loads(out), NAMED["vgg11-shallue2019"]
    assert (code, found["steps_name"], found["steps_source"]) == (0, curve.name, curve.source)
    assert {x["steps"] for x in found["points"] if x["strategy"] == "strong"} == {curve.steps(256)}


def test_the_names_of_built_in_curves_are_in_the_help(scaling):
    _, out, _ = scaling("--help")
    text = "".join(out.replace("│", "").split())  # wrapped inside names
    assert all(name in text for name in NAMED)


def test_a_file_that_cannot_be_written_is_reported_before_the_study(scaling, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it studied")

    monkeypatch.setattr("deeppool.planning.studies.scaling.scaling", never)
    code, _, err = scaling("profile.json", "-o", "absent/study.json")
    assert code == 1
    assert "there is no folder absent" in err


@pytest.mark.parametrize(
    ("arguments", "code", "phrase"),
    [
        ("profile.json --gpus 0", 1, "gpus must be at least 1, got 0"),
        ("profile.json --network 0", 1, "--network must be positive and finite, got 0 (Gbit/s)"),
        ("profile.json --network fast", 2, "takes whole numbers with commas, got 'fast'"),
        ("profile.json --steps-to-accuracy moon", 1, "no steps to accuracy 'moon': neither a file nor one of"),
        ("profile.json --steps-to-accuracy profile.json", 1, "field 'format' is 'deeppool/profile', expected"),
        ("profile.json --amplification-limit 0.5", 1, "amplification_limit must be at least 1.0, got 0.5"),
        ("profile.json --global-batch 0", 1, "global_batch must be at least 1, got 0"),
        ("steps.json", 1, "field 'format' is 'deeppool/steps-table', expected 'deeppool/profile'"),
    ],
)
def test_an_error_is_reported_on_standard_error_alone(scaling, arguments, code, phrase):
    found, out, err = scaling(*arguments.split())
    assert (found, out) == (code, "")
    assert phrase in " ".join(err.replace("│", " ").split())
    assert code == 2 or err.count("\n") == 1
