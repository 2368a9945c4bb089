"""Topologies that users give, as graphs of ranks with roles (the paper's section 3.1), in JSON and as the core's text.

    {"nodes": [0, 1, 2], "edges": [[1, 0, "reduce"], [2, 0, "reduce"], [0, 1, "broadcast"], [0, 2, "broadcast"]]}

A rank adds what comes to it over `reduce` edges to its own contribution, and sends the sum over its own `reduce` edge.
One rank has none: it makes the result, which goes back over `broadcast` edges. A list of such objects is dealt to the
partitions of a gradient in turn. The core checks that every contribution reaches every rank exactly once.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from casync._constants import PHASES
from casync.errors import InvalidArgumentError
from casync.plan.phases import in_short, is_list

__all__ = ["GraphError", "check_topology", "is_graph", "shown", "to_document", "to_text", "topology_of"]

_NAMES = ("auto", *PHASES)
_ROLES = ("reduce", "broadcast")


class GraphError(InvalidArgumentError):
    """A file or an object that is no graph; says where and why."""


def is_graph(topology: str) -> bool:
    """Whether a topology is a graph in the core's text, and not a name."""
    return re.fullmatch(r"graph\([0-9 >]*;[0-9 >]*(\|[0-9 >]*;[0-9 >]*)*\)", topology) is not None


def shown(topology: str) -> str:
    """A topology for people: its name, or that of a graph, which is a digest: "graph-1f3a9c02"."""
    if not is_graph(topology):
        return topology
    digest = 0xCBF29CE484222325  # FNV-1a as the core has it; its lower half
    for byte in topology.encode():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return f"graph-{digest % 2**32:08x}"


def to_text(document: object) -> str:
    """The core's text of a graph, or of a list of graphs, as JSON has it. Raises GraphError."""
    graphs = document if isinstance(document, list) else [document]
    if not graphs:
        raise GraphError("a topology needs at least one graph")
    return f"graph({'|'.join(_one(graph) for graph in graphs)})"


def _one(graph: object) -> str:
    if not isinstance(graph, dict) or set(graph) != {"nodes", "edges"}:
        raise GraphError('a graph is an object with "nodes" and "edges"')
    nodes, edges = graph["nodes"], graph["edges"]
    if not isinstance(nodes, list) or not nodes or any(type(node) is not int for node in nodes):
        raise GraphError(f'"nodes" must be a list of ranks, not {nodes!r}')
    if sorted(nodes) != list(range(len(nodes))):
        raise GraphError(f'"nodes" must have every rank of the world once, from 0 to {len(nodes) - 1}')
    if not isinstance(edges, list):
        raise GraphError(f'"edges" must be a list of [from, to, role], not {edges!r}')
    by_role: dict[str, list[tuple[int, int]]] = {role: [] for role in _ROLES}
    for edge in edges:
        by_role[_role_of(edge, len(nodes))].append((edge[0], edge[1]))
    return ";".join(_edges(by_role[role]) for role in _ROLES)


def _role_of(edge: object, ranks: int) -> str:
    if not isinstance(edge, list) or len(edge) != 3:
        raise GraphError(f"an edge is [from, to, role], not {edge!r}")
    for end in edge[:2]:
        if type(end) is not int or not 0 <= end < ranks:
            raise GraphError(f"edge {edge!r}: {end!r} is not among the nodes")
    role = edge[2]
    if role not in _ROLES:
        raise GraphError(f"edge {edge!r}: role {role!r} is not known; known: {', '.join(_ROLES)}")
    return str(role)


def _edges(edges: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{start}>{end}" for start, end in sorted(edges))


def to_document(text: str) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the document that `to_text` made `text` of: an object, or a list of several."""
    graphs = []
    for one in text[len("graph(") : -1].split("|"):
        edges: list[list[object]] = []
        last = 0
        for role, part in zip(_ROLES, one.split(";"), strict=True):
            for edge in part.split():
                start, end = map(int, edge.split(">"))
                edges.append([start, end, role])
                last = max(last, start, end)
        graphs.append({"nodes": list(range(last + 1)), "edges": edges})
    return graphs[0] if len(graphs) == 1 else graphs


def topology_of(given: str) -> str:
    """A topology as users write it: a name, a list of phases, or the path of a JSON file with a graph, which is read
    once.

    Raises GraphError, naming the file, for one that cannot be read or holds no graph.
    """
    if not isinstance(given, str):
        raise GraphError(
            f"topology={given!r}: it must be one of {', '.join(_NAMES)}, a list of phases, or the path of a JSON file"
        )
    return _of_file(given) if given.endswith(".json") else in_short(given)


def check_topology(given: str) -> None:
    """Raises GraphError for what is no name, no list of phases, and no file with a graph. A graph of too few ranks is
    found later.
    """
    text = topology_of(given)
    if text not in _NAMES and not is_graph(text) and not is_list(text):
        raise GraphError(
            f"this topology is not known; known: {', '.join(_NAMES)}, a list of phases, or the path of a JSON file"
        )


@functools.lru_cache
def _of_file(given: str) -> str:
    path = Path(given)
    try:
        return to_text(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError, GraphError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise GraphError(f"topology {os.fspath(path)!r}: {reason}") from None
