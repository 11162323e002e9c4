"""``deeppool plan --search published`` on the command line."""

import json
from functools import partial

import pytest

import deeppool as dp
from tests.planning.search.test_published import breaks_its_limit


@pytest.fixture
def plan_command(deeppool, tmp_path):
    """Plans the hand-made profile for four GPUs: exit code, standard output and error."""
    profile, cluster, batch = breaks_its_limit()
    dp.save(profile, tmp_path / "profile.json")
    dp.save(cluster, tmp_path / "cluster.json")
    given = [tmp_path / "profile.json", "--gpus", cluster.gpus, "--global-batch", batch]
    given += ["--cluster", tmp_path / "cluster.json", "--amplification-limit", 1.5]
    return partial(deeppool, "plan", *given)


def test_a_published_plan_as_json_names_its_search_its_claim_and_what_is_over_the_limit(plan_command):
    code, out, _ = plan_command("--search", "published", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["search"], document["optimality"], document["over_limit"]) == (
        "published",
        "heuristic",
        ["layer1"],
    )
    assert document["claim"]["iteration_time"] == pytest.approx(5.6e-3)
    assert document["claim"]["gpus"] == 4


def test_a_plan_is_exact_unless_asked_otherwise(plan_command):
    document = json.loads(plan_command("--json")[1])
    assert (document["search"], document["over_limit"], document["claim"]) == ("exact", [], None)


def test_a_published_plan_for_people_says_what_it_claims(plan_command):
    code, out, _ = plan_command("--search", "published")
    assert code == 0
    assert "the published search claims 5.6 ms" in " ".join(out.split())


def test_a_published_plan_with_a_limit_on_the_iteration_is_one_line_of_error(plan_command):
    code, out, err = plan_command("--search", "published", "--limit-scope", "iteration")
    assert (code, out) == (1, "")
    assert err.startswith("error: limit_scope must be 'layer' with search='published', got 'iteration'")
    assert err.count("\n") == 1
