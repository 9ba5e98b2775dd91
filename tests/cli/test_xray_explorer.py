"""What Model Explorer loads: graphs with edges that end at nodes, and data for those nodes."""

import json
import re
from typing import Any

import msgspec
import pytest

from cke.cli.output import encode_json
from cke.cli.xray import renderers
from cke.cli.xray_explorer import EXACT, FINDING, OVER, UNSEEN, graphs, node_data
from cke.schemas.diagnosis import CircuitRow, Diagnosis
from tests.xray import reports

NODE = {"id", "label", "namespace", "attrs", "incomingEdges", "style"}


def _row(op: str, stop: int | None, reads: tuple[int, ...], layer: int | None = 0) -> CircuitRow:
    error = None if stop is None else reports.points()[stop].rmse
    return CircuitRow(
        phase="prefill",
        step="embed" if layer is None else f"layer.{layer}",
        layer=layer,
        op=op,
        operator=op.rpartition(".")[2],
        function="layer",
        kernel_id="kernel",
        required_contract_id="kernel.v1",
        resolved_contract_id="kernel.v1",
        stops=() if stop is None else (stop,),
        max_abs=error,
        rmse=error,
        exact_ratio=None if stop is None else 1.0,
        reads=reads,
    )


@pytest.fixture
def report() -> Diagnosis:
    """A finding in the second of four ops; the third is not compared."""
    circuit = (
        _row("embed", 0, (), None),
        _row("attention.rope", 1, (0,)),
        _row("attention.sdpa", None, (1, 1)),
        _row("head", 2, (2, 0)),
    )
    return msgspec.structs.replace(reports.finding(), circuit=circuit)


def test_graphs_have_the_members_that_the_viewer_reads(report: Diagnosis) -> None:
    loaded: Any = json.loads(renderers(report)["model-explorer"]())
    assert isinstance(loaded, list)
    for graph in loaded:
        ids = [node["id"] for node in graph["nodes"]]
        assert len(set(ids)) == len(ids)
        for node in graph["nodes"]:
            assert set(node) == NODE
            assert not node["namespace"].startswith("/")
            assert all(set(item) == {"key", "value"} for item in node["attrs"])
            assert all(isinstance(item["value"], str) for item in node["attrs"])
            for edge in node["incomingEdges"]:
                assert set(edge) == {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
                assert edge["sourceNodeId"] in ids
            numbers = [edge["targetNodeInputId"] for edge in node["incomingEdges"]]
            assert numbers == [str(number) for number in range(len(numbers))]
        assert all(isinstance(text, str) for text in graph["groupNodeAttributes"][""].values())


def test_colours_say_what_was_found_what_is_over_and_what_was_not_seen(report: Diagnosis) -> None:
    (graph,) = graphs(report)
    colours = [node["style"]["backgroundColor"] for node in graph["nodes"]]
    assert colours == [EXACT, FINDING, UNSEEN, OVER]
    attributes = {item["key"]: item["value"] for item in graph["nodes"][1]["attrs"]}
    assert attributes["first divergence"] == "POSITION_CONTRACT_MISMATCH"
    assert attributes["owner"] == "circuit"
    assert {item["value"] for item in graph["nodes"][2]["attrs"]} >= {"not compared"}


def test_group_has_a_border_of_the_worst_colour_of_its_ops(
    report: Diagnosis,
) -> None:
    (graph,) = graphs(report)
    shown = {
        name: (group["borderColor"], group.get("textColor"))
        for name in ("embed", "layer.0", "layer.0/attention", "layer.00", "layerx0")
        for group in graph["groupNodeConfigs"]
        if re.search(group["namespaceRegex"], name)
    }
    assert shown == {
        "embed": (EXACT, None),
        "layer.0": (FINDING, FINDING),
        "layer.0/attention": (FINDING, FINDING),
    }


def test_node_data_names_nodes_of_its_graph(report: Diagnosis) -> None:
    data: Any = json.loads(encode_json(node_data(report)))
    shown = {graph["id"]: {node["id"] for node in graph["nodes"]} for graph in graphs(report)}
    assert set(data) == set(shown)
    for graph, body in data.items():
        assert set(body["results"]) <= shown[graph]
        for item in body["results"].values():
            assert isinstance(item["value"], float)
            assert item["bgColor"].startswith("#")
    compared = {"embed/embed", "layer.0/attention.rope", "layer.0/head"}
    assert set(data["prefill"]["results"]) == compared
