"""docs/codecs.md says of every codec how it goes over every topology."""

import re
from pathlib import Path

import pytest

from casync import _core
from casync._constants import TOPOLOGIES
from casync.bench.simulate import predict

PAGE = (Path(__file__).parents[3] / "docs" / "codecs.md").read_text()


def rows_after(mark: str) -> list[list[str]]:
    """The cells of the first table after `mark`, without its ruler."""
    lines = PAGE[PAGE.index(mark) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return [row for i, row in enumerate(table) if i != 1]


def test_the_table_of_ways_has_all_topologies_and_each_codec_is_of_one_of_its_rows():
    ways = rows_after("<!-- ways -->")
    assert re.findall(r"`(\w+)`", " ".join(ways[0])) == sorted(TOPOLOGIES)
    codecs = rows_after("# Codecs")
    assert {row[3] for row in codecs[1:]} == {row[0] for row in ways[1:]}
    named = {name for row in codecs[1:] for name in re.findall(r"`(\w+)", row[0])}
    assert named == set(_core.codec_names())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("spec", [*_core.codec_names(), "powersgd(start_step=0)"])
def test_every_codec_takes_every_topology(spec, topology):
    step = predict(
        [(500, 300), (7, 3), (0, 1)],
        nodes=2,
        ranks_per_node=2,
        rate=1e9,
        compression=f"always({spec})",
        topology=topology,
        partition_bytes=1 << 16,
    )
    assert step["sent_bytes"] > 0
