"""The lab's names and commands are data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.netlab.layout import Distance, Layout, agent_script, removal, setup, wan_command, wire


def test_a_buffer_is_that_of_the_switch():
    commands = [" ".join(command) for command in setup(Layout(0, 1, "200mbit", buffer_kib=64))]
    down = [command for command in commands if "tbf" in command and "csnl0v1" in command]
    assert len(down) == 1
    assert "limit 64kb" in down[0]
    assert any("gso_max_segs 1" in command for command in commands), "packets are those of a wire"
    for wrong in ({"rate": None}, {"rate": "100mbit", "distance": Distance(1.0)}):
        with pytest.raises(ValueError, match="a buffer is that of a switch"):
            Layout(0, 1, wrong["rate"], wrong.get("distance"), 64)


def test_names_carry_the_slot() -> None:
    layout = Layout(3, 2, "1gbit")
    assert (layout.bridge, layout.network, layout.gateway) == ("csnl3", "10.231.203.0/24", "10.231.203.1")
    host = layout.hosts[1]
    assert (host.name, host.namespace, host.link, host.address) == ("h2", "csnl3-h2", "csnl3v2", "10.231.203.12")
    assert all(len(h.link) <= 15 for h in Layout(31, 200, None).hosts)


def test_each_direction_of_a_link_is_shaped_once() -> None:
    shaped = [" ".join(command) for command in setup(Layout(0, 1, "1gbit")) if command[0] == "tc"]
    tail = "root tbf rate 1gbit burst 256kb latency 20ms"
    assert shaped == [f"tc -n csnl0-h1 qdisc add dev eth0 {tail}", f"tc qdisc add dev csnl0v1 {tail}"]
    assert not [command for command in setup(Layout(0, 1, None)) if command[0] == "tc"]


def test_removal_touches_its_own_slot_only() -> None:
    namespaces = ["csnl1-h1", "csnl10-h1", "other"]
    links = ["lo", "csnl1", "csnl1v1", "csnl10", "csnl10v1", "eth0"]
    assert [command[-1] for command in removal(1, namespaces, links)] == ["csnl1-h1", "csnl1v1", "csnl1"]


@pytest.mark.parametrize("count", [0, 201])
def test_a_lab_has_a_sensible_size(count: int) -> None:
    with pytest.raises(ValueError, match="hosts"):
        Layout(0, count, None)


def test_the_agent_refuses_unknown_hosts(tmp_path: Path) -> None:
    agent = tmp_path / "agent.sh"
    agent.write_text(agent_script(Layout(0, 2, None)))
    done = subprocess.run(
        ["sh", str(agent), "-x", "nohost", "true"], capture_output=True, text=True, timeout=10, check=False
    )
    assert (done.returncode, done.stderr) == (255, "netlab: no host nohost\n")


def test_distant_hosts_have_an_emulator_in_place_of_a_switch() -> None:
    layout = Layout(2, 2, "100mbit", Distance(40.0, 0.001))
    made = [" ".join(command) for command in setup(layout)]
    assert not [command for command in made if "veth" in command or command.startswith("tc")]
    command = " ".join(wan_command(layout, "wan"))
    assert command == "wan 100 40 0.001 100 csnl2-h1=10.231.202.11 csnl2-h2=10.231.202.12 -=10.231.202.1"
    after = [" ".join(command) for command in wire(layout)]
    assert "ip -n csnl2-h2 addr add 10.231.202.12/24 dev eth0" in after


@pytest.mark.parametrize(("rate", "rtt", "loss", "text"), [
    ("1gbit", 10, 0, "up to 300mbit"), (None, 10, 0, "up to 300mbit"), ("100mbit", -1, 0, "round trip"),
    ("100mbit", 10, 1, "loss"), ("100mbit", None, 0.1, "--rtt"),
])  # fmt: skip
def test_what_is_no_distance(rate: str | None, rtt: float | None, loss: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Layout(0, 2, rate, Distance.of(rtt, loss))
