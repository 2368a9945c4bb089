"""The choice of what carries between hosts, from the command line, the environment and this machine's devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from casync.launcher.carrier import active_fabric, choose_carrier
from casync.launcher.mpirun import Facts, MpiInstall, MpiNotFound, compose
from casync.launcher.options import parse
from casync.launcher.slurm import Srun

FACTS = Facts(
    mpi=MpiInstall("/mpi/bin/mpirun", (5, 0, 11), True, "for the test"),
    python="/py",
    launcher="/l",
    root=False,
    cores=4,
    local_names=frozenset({"me"}),
)


@pytest.mark.parametrize(
    ("flags", "environ", "fabric", "told", "says"),
    [
        ([], {}, "", {"CASYNC_TRANSPORT": "tcp"}, "sockets carry between hosts"),
        ([], {"CASYNC_TRANSPORT": "auto"}, "", {"CASYNC_TRANSPORT": "tcp"}, "sockets carry"),
        ([], {}, "InfiniBand (mlx5_0)", {}, "MPI carries between hosts, since this one has InfiniBand"),
        (["--mpi-args", "--mca pml ucx"], {}, "", {}, "since you chose its pml"),
        (["--mpi-args", "--mca mtl ofi --mca pml cm"], {}, "", {}, "since you chose its pml and mtl"),
        ([], {"OMPI_MCA_btl": "sm,self,uct"}, "", {}, "since you chose its btl"),
        ([], {"CASYNC_TRANSPORT": "mpi"}, "", {}, "MPI carries between hosts (CASYNC_TRANSPORT=mpi)"),
        (["--mpi"], {}, "", {}, "MPI carries between hosts (CASYNC_TRANSPORT=mpi)"),
        (["--gloo"], {}, "InfiniBand (mlx5_0)", {}, "sockets carry between hosts (CASYNC_TRANSPORT=tcp)"),
        (["-x", "CASYNC_TRANSPORT=mpi"], {}, "", {}, "MPI carries"),
        (
            ["--network-interface", "eth1,10.0.0.0/16"],
            {},
            "",
            {"CASYNC_TRANSPORT": "tcp", "CASYNC_NETWORK_INTERFACE": "eth1,10.0.0.0/16"},
            "sockets carry",
        ),
        (["--nics", "eth1"], {"CASYNC_NETWORK_INTERFACE": "eth0"}, "", {"CASYNC_TRANSPORT": "tcp"}, "sockets carry"),
        (["--nics", "eth1", "--gloo"], {}, "", {"CASYNC_NETWORK_INTERFACE": "eth1"}, "sockets carry"),
    ],
)
def test_sockets_carry_between_hosts_unless_mpi_has_something_better(
    flags: list[str], environ: dict[str, str], fabric: str, told: dict[str, str], says: str
) -> None:
    carrier = choose_carrier(parse(["-H", "me:1,h2:1", *flags, "a"]), environ, True, fabric)
    assert carrier.environ == told
    assert says in " ".join(carrier.notes)


def test_inside_one_host_the_ranks_decide() -> None:
    carrier = choose_carrier(parse(["-np", "2", "--nics", "eth1", "a"]), {}, False, "InfiniBand (mlx5_0)")
    assert (carrier.environ, carrier.notes) == ({}, ())


def test_every_way_of_starting_ranks_tells_them() -> None:
    line = parse(["-H", "me:1,h2:1", "a"])
    by_mpirun = compose(line, FACTS, {"PATH": "/bin"})
    assert by_mpirun.environ["CASYNC_TRANSPORT"] == "tcp"
    at = by_mpirun.argv.index("CASYNC_TRANSPORT")
    assert by_mpirun.argv[at - 1] == "-x"
    assert "sockets carry between hosts" in by_mpirun.note
    slurm = compose(
        parse(["a"], line.hosts),
        dataclasses.replace(FACTS, allocation=line.hosts, srun=Srun("/srun", True)),
        {"SLURM_JOB_ID": "7"},
    )
    assert (slurm.starter, slurm.environ["CASYNC_TRANSPORT"]) == ("srun", "tcp")
    starter = compose(parse(["-H", "me:1,h2:1", "--nics", "e", "a"]), dataclasses.replace(FACTS, mpi=None), {})
    assert starter.environ["CASYNC_NETWORK_INTERFACE"] == "e"
    assert '"CASYNC_NETWORK_INTERFACE"' in starter.argv[4]


def test_auto_said_aloud_is_what_no_word_is() -> None:
    mpirun = compose(
        parse(["-H", "me:1,h2:1", "-x", "CASYNC_TRANSPORT=auto", "a"]), FACTS, {"CASYNC_TRANSPORT": "auto"}
    )
    assert mpirun.environ["CASYNC_TRANSPORT"] == "tcp"
    assert [word for word in mpirun.argv if word.startswith("CASYNC_TRANSPORT")] == ["CASYNC_TRANSPORT"]
    alone = dataclasses.replace(FACTS, mpi=None)
    started = compose(parse(["-H", "me:1,h2:1", "-x", "CASYNC_TRANSPORT=auto", "a"]), alone, {})
    assert started.environ["CASYNC_TRANSPORT"] == "tcp"


def test_mpi_is_not_promised_where_there_is_none() -> None:
    facts = dataclasses.replace(FACTS, mpi=None, no_mpi="no mpirun")
    with pytest.raises(MpiNotFound, match="--mpi"):
        compose(parse(["-np", "2", "--mpi", "a"]), facts, {})


def device(folder: Path, name: str, layer: str, state: str) -> None:
    port = folder / name / "ports" / "1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text(f"{layer}\n")
    (port / "state").write_text(f"{state}\n")


def test_a_fabric_is_a_port_that_is_up_and_no_ethernet(tmp_path: Path) -> None:
    assert active_fabric(tmp_path / "none") == ""
    device(tmp_path, "mlx5_0", "Ethernet", "4: ACTIVE")
    device(tmp_path, "mlx5_1", "InfiniBand", "1: DOWN")
    assert active_fabric(tmp_path) == ""
    device(tmp_path, "hfi1_0", "InfiniBand", "4: ACTIVE")
    assert active_fabric(tmp_path) == "Omni-Path (hfi1_0)"
    device(tmp_path, "abc", "InfiniBand", "4: ACTIVE")
    assert active_fabric(tmp_path) == "InfiniBand (abc)"
