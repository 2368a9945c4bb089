"""Graphs of ranks: as JSON, as the core's text, and what is no graph."""

import json

import pytest

from casync import _core
from casync.plan.plans import GradientPlan, PlanError, from_json, to_json
from casync.plan.topology import GraphError, is_graph, shown, to_document, to_text, topology_of

STAR = {"nodes": [0, 1, 2], "edges": [[1, 0, "reduce"], [2, 0, "reduce"], [0, 1, "broadcast"], [0, 2, "broadcast"]]}
TEXT = "graph(1>0 2>0;0>1 0>2)"


def test_json_and_text_say_the_same():
    assert to_text(STAR) == TEXT
    assert to_document(TEXT) == STAR
    assert to_document(to_text([STAR, STAR])) == [STAR, STAR]
    assert to_text({"nodes": [0], "edges": []}) == "graph(;)"
    assert to_document("graph(;)") == {"nodes": [0], "edges": []}


def test_the_order_of_nodes_and_edges_means_nothing():
    assert to_text({"edges": STAR["edges"][::-1], "nodes": [2, 0, 1]}) == TEXT


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "at least one"),
        ({"nodes": [0]}, '"edges"'),
        ({"nodes": 3, "edges": []}, "a list of ranks, not 3"),
        ({"nodes": [0, 2], "edges": []}, "from 0 to 1"),
        ({"nodes": [0, 0], "edges": []}, "from 0 to 1"),
        ({"nodes": [0, True], "edges": []}, "a list of ranks"),
        ({"nodes": [0, 1], "edges": {}}, "not {}"),
        ({"nodes": [0, 1], "edges": [[0, 1]]}, "[0, 1]"),
        ({"nodes": [0, 1], "edges": [[0, 5, "reduce"]]}, "5 is not among the nodes"),
        ({"nodes": [0, 1], "edges": [[0, 1, "push"]]}, "'push' is not known; known: reduce, broadcast"),
    ],
)
def test_what_is_no_graph_is_refused_by_name(document, said):
    with pytest.raises(GraphError) as caught:
        to_text(document)
    assert said in str(caught.value)


def test_a_file_is_named_where_it_is_no_graph(tmp_path):
    path = tmp_path / "graph.json"
    with pytest.raises(GraphError, match="graph.json"):
        topology_of(str(path))
    path.write_text("{")
    with pytest.raises(GraphError, match="graph.json"):
        topology_of(str(path))
    path.write_text(json.dumps(STAR))
    assert topology_of(str(path)) == TEXT
    assert topology_of("ring") == "ring"


def test_people_see_a_digest():
    assert is_graph(TEXT) and not is_graph("ring") and not is_graph("graph(x)")
    assert shown("ring") == "ring"
    link = (1.25e8, 5e-5, 5e-6)
    step = _core.simulate([(1 << 20, 1)], [0, 1, 2], between=link, within=link, compression="onebit", topology=TEXT)
    assert step["step_s"] > 0
    assert shown(TEXT).startswith("graph-") and len(shown(TEXT)) == len("graph-01234567")


def test_a_plan_file_holds_a_graph():
    plans = {"w": GradientPlan(TEXT, "onebit", 2), "v": GradientPlan("ring")}
    document = json.loads(to_json(plans))
    assert document["gradients"]["w"]["topology"] == STAR
    assert from_json(to_json(plans)) == plans
    document["gradients"]["w"]["topology"]["edges"].append([7, 0, "reduce"])
    with pytest.raises(PlanError, match="'w'.*7 is not among the nodes"):
        from_json(json.dumps(document))
