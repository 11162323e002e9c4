"""The export for Model Explorer: its documented schema, with the plan's layers, edges and values."""

import json

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.errors import DocumentError, InvalidValueError

PLAN = dp.plan(dp.find_profile("inception_v3-cpu"), 8, 64, 1.5)
# Fields of graph_builder.py and node_data_builder.py of ai-edge-model-explorer 0.1.34, which opens these files.
NODE = {"id", "label", "namespace", "attrs", "incomingEdges"}
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
DATA = {"name", "results", "gradient", "hideAggregatedStats"}


def test_every_layer_is_a_node_in_the_namespace_of_its_module(tmp_path) -> None:
    path, *beside = figures.write_model_explorer(tmp_path / "plan.json", PLAN)
    assert [x.name for x in beside] == ["plan.gpus.json", "plan.amplification.json", "plan.time.json"]
    document = json.loads(path.read_text())
    assert set(document) == {"label", "graphs"}
    (graph,) = document["graphs"]
    assert graph["id"] == "inception_v3"
    assert all(set(node) == NODE for node in graph["nodes"])
    names = [".".join([*filter(None, [node["namespace"].replace("/", ".")]), node["label"]]) for node in graph["nodes"]]
    assert names == [layer.name for layer in PLAN.layers]
    edges = [(int(edge["sourceNodeId"]), int(node["id"])) for node in graph["nodes"] for edge in node["incomingEdges"]]
    assert edges == [(source, index) for index, layer in enumerate(PLAN.layers) for source in layer.predecessors]
    assert all(set(edge) == EDGE for node in graph["nodes"] for edge in node["incomingEdges"])
    attributes = {each["key"]: each["value"] for each in graph["nodes"][0]["attrs"]}
    assert all(isinstance(value, str) for value in attributes.values())
    assert attributes["amplification"].endswith("(limit 1.5)")
    assert attributes["GPUs"].startswith(f"{PLAN.layers[0].gpu_count} of 8")


@pytest.mark.parametrize("quantity", ["gpus", "amplification", "time"])
def test_node_data_has_a_value_for_every_node(tmp_path, quantity) -> None:
    paths = figures.write_model_explorer(tmp_path / "plan.json", PLAN)
    (path,) = [path for path in paths if path.name == f"plan.{quantity}.json"]
    document = json.loads(path.read_text())
    assert set(document) == {"inception_v3"}
    data = document["inception_v3"]
    assert set(data) == DATA
    assert [stop["stop"] for stop in data["gradient"]] == [0, 1]
    wanted = {
        "gpus": [layer.gpu_count for layer in PLAN.layers],
        "amplification": [layer.amplification for layer in PLAN.layers],
        "time": [1e3 * layer.time for layer in PLAN.layers],
    }
    assert [data["results"][str(index)]["value"] for index in range(len(PLAN.layers))] == pytest.approx(
        wanted[quantity], rel=1e-3, abs=1e-4
    )


def test_nothing_is_written_where_a_part_cannot_be(tmp_path) -> None:
    (tmp_path / "plan.time.json").mkdir()
    with pytest.raises(DocumentError, match=r"cannot write .*plan\.time\.json: it is a folder"):
        figures.write_model_explorer(tmp_path / "plan.json", PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.time.json"]
    with pytest.raises(InvalidValueError, match="plan must be a Plan, got 'plan'"):
        figures.write_model_explorer(tmp_path / "plan.json", "plan")
