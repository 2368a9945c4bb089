"""The mpirun line is a pure function of options, facts and environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from casync.launcher.mpirun import Facts, MpiInstall, MpiNotFound, compose, find, listen_addresses
from casync.launcher.options import parse

FACTS = Facts(
    mpi=MpiInstall("/mpi/bin/mpirun", (5, 0, 11), True, "test"),
    python="/py",
    launcher="/l",
    root=False,
    cores=4,
    local_names=frozenset({"localhost", "me"}),
)
FT = " --mca coll '^hcoll,portals4,han'"
TAIL = " /py -I -S /l/rank/__main__.py -- a"
BASE = (
    "--mca pml ob1 --mca btl sm,tcp,self --mca btl_tcp_flags send,inplace,need-ack,need-csum "
    "--mca btl_sm_eager_limit 33024"
)
REMOTE = " --mca btl_tcp_eager_limit 524288"


def line(*argv: str, facts: Facts = FACTS, environ: dict[str, str] | None = None) -> str:
    return compose(parse([*argv, "a"]), facts, environ or {}).shell()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["-np", "4"],
            f"/mpi/bin/mpirun --with-ft ulfm -n 4 --map-by slot:OVERSUBSCRIBE --bind-to none {BASE}{FT}{TAIL}",
        ),
        (
            ["-np", "5"],
            f"/mpi/bin/mpirun --with-ft ulfm -n 5 --map-by slot:OVERSUBSCRIBE --bind-to none {BASE}{FT} "
            f"--mca mpi_yield_when_idle 1{TAIL}",
        ),
        (
            ["-H", "h1:2,h2:2"],
            "CASYNC_TRANSPORT=tcp "
            f"/mpi/bin/mpirun --with-ft ulfm -n 4 -H h1:2,h2:2 --map-by slot --bind-to none {BASE}{REMOTE}{FT}"
            f" -x CASYNC_TRANSPORT{TAIL}",
        ),
        (
            ["-np", "2", "-H", "h1,h2", "--rsh-agent", "/agent", "--nics", "10.0.0.0/24", "-x", "A=b c"],
            "CASYNC_TRANSPORT=tcp CASYNC_NETWORK_INTERFACE=10.0.0.0/24 "
            "/mpi/bin/mpirun --with-ft ulfm -n 2 -H h1:1,h2:1 --map-by slot --bind-to none "
            "--prtemca plm_ssh_agent /agent --prtemca prte_if_include 10.0.0.0/24 "
            f"--mca btl_tcp_if_include 10.0.0.0/24 {BASE}{REMOTE}{FT} -x 'A=b c' "
            f"-x CASYNC_TRANSPORT -x CASYNC_NETWORK_INTERFACE{TAIL}",
        ),
    ],
)
def test_line(argv: list[str], expected: str) -> None:
    assert line(*argv) == expected


def test_port_and_key_go_to_ssh() -> None:
    launch = compose(parse(["-H", "h1:1,me:1", "-p", "2222", "-i", "/key", "a"]), FACTS, {})
    assert "--prtemca plm_ssh_args '-p 2222 -i /key'" in launch.shell()
    assert launch.by_ssh == ("h1",)


def test_hosts_are_not_tried_where_something_else_than_ssh_reaches_them() -> None:
    assert compose(parse(["-H", "h1:1", "--rsh-agent", "r", "a"]), FACTS, {}).by_ssh == ()
    assert compose(parse(["-H", "h1:1", "--mpi-args", "--prtemca plm_ssh_agent r", "a"]), FACTS, {}).by_ssh == ()
    assert compose(parse(["-H", "h1:1", "a"]), FACTS, {"PRTE_MCA_plm_ssh_agent": "r"}).by_ssh == ()


def test_root_and_oversubscription_are_decided_and_said() -> None:
    launch = compose(parse(["-np", "5", "a"]), dataclasses.replace(FACTS, root=True), {})
    assert "--allow-run-as-root" in launch.argv
    assert launch.note == (
        "running as root (--allow-run-as-root); 5 ranks on the 4 cores of this host: oversubscribed, idle ranks yield"
    )
    assert (
        compose(parse(["-np", "4", "a"]), FACTS, {}).note == "4 ranks on the 4 cores of this host: not oversubscribed"
    )


def test_only_the_ranks_of_this_host_count_as_oversubscription() -> None:
    assert "6 ranks on the 4 cores" in compose(parse(["-H", "h1:8,me:8", "-np", "14", "a"]), FACTS, {}).note
    assert "no rank on this host" in compose(parse(["-H", "h1:8", "a"]), FACTS, {}).note


def test_what_the_user_sets_wins_over_the_table() -> None:
    assert "--mca pml ucx" in line("-np", "2", "--mpi-args", "--mca pml ucx")
    assert "ob1" not in line("-np", "2", "--mpi-args", "--mca pml ucx")
    assert "--mca btl " not in line("-np", "2", environ={"OMPI_MCA_btl": "tcp,self"})
    assert line("-np", "2", "--mpi-args", "--map-by core --bind-to core").count("--map-by") == 1


def test_without_ulfm_nothing_asks_for_it() -> None:
    assert FACTS.mpi is not None
    plain = dataclasses.replace(FACTS, mpi=dataclasses.replace(FACTS.mpi, fault_tolerant=False))
    assert "--with-ft" not in line("-np", "2", facts=plain)
    assert "coll" not in line("-np", "2", facts=plain)


def test_open_mpi_4_has_other_names_for_the_runtime_settings() -> None:
    old = dataclasses.replace(FACTS, mpi=MpiInstall("/mpi/bin/mpirun", (4, 1, 4), False, "test"))
    text = line("-np", "1", "-H", "h1", "--rsh-agent", "/agent", "--nics", "eth0", facts=old)
    assert "--mca plm_rsh_agent /agent --mca oob_tcp_if_include eth0" in text


def test_other_hosts_get_the_environment_by_name_and_this_one_inherits_it() -> None:
    environ = {"DATA": "x", "HOME": "/root", "OMPI_MCA_pml": "ob1", "BASH_FUNC_f%%": "()", "SLURM_JOB_NAME": "j"}
    exported = [word for flag, word in _pairs(compose(parse(["-H", "h1", "a"]), FACTS, environ).argv) if flag == "-x"]
    assert exported == ["DATA"]
    assert "-x" not in compose(parse(["-np", "1", "a"]), FACTS, environ).argv


def test_an_export_with_a_value_is_named_once() -> None:
    argv = compose(parse(["-H", "h1", "-x", "DATA=y", "a"]), FACTS, {"DATA": "x"}, exports=("TOKEN",)).argv
    assert [word for flag, word in _pairs(argv) if flag == "-x"] == ["DATA=y", "TOKEN", "CASYNC_TRANSPORT"]


def test_a_resource_manager_without_hosts_may_place_ranks_elsewhere() -> None:
    assert compose(parse(["-np", "2", "a"]), FACTS, {"SLURM_JOB_ID": "7"}).remote
    assert not compose(parse(["-np", "2", "a"]), FACTS, {}).remote


def _pairs(argv: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(argv, argv[1:], strict=False))


def _fake_mpi(folder: Path, version: str, ft: str) -> Path:
    folder.mkdir()
    for name, text in (("mpirun", version), ("ompi_info", ft), ("mpicc", "")):
        (folder / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_mpicc_names_the_mpi_to_use(tmp_path: Path) -> None:
    folder = _fake_mpi(tmp_path / "bin", "mpirun (Open MPI) 5.0.3", " FT MPI support: yes")
    mpi = find({"MPICC": str(folder / "mpicc"), "PATH": "/bin:/usr/bin"})
    assert (mpi.mpirun, mpi.version, mpi.fault_tolerant) == (str(folder / "mpirun"), (5, 0, 3), True)


def test_another_mpi_is_refused_by_name(tmp_path: Path) -> None:
    folder = _fake_mpi(tmp_path / "bin", "HYDRA build details:", "")
    with pytest.raises(MpiNotFound, match="does not say that it is Open MPI's, but 'HYDRA.*leave out MPICC"):
        find({"MPICC": str(folder / "mpicc"), "PATH": "/bin:/usr/bin"})
    with pytest.raises(MpiNotFound, match="not an executable"):
        find({"MPICC": "/no/such/mpicc", "PATH": "/bin"})


def test_an_open_mpi_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    """Without HOME it says so, on stderr, and not which version it is."""
    folder = _fake_mpi(tmp_path / "bin", "", "")
    (folder / "mpirun").write_text("#!/bin/sh\necho 'Unable to get the user home directory' >&2\nexit 1\n")
    with pytest.raises(MpiNotFound, match="'Unable to get the user home directory'"):
        find({"MPICC": str(folder / "mpicc"), "PATH": "/bin:/usr/bin"})


def test_a_job_of_this_host_listens_on_loopback_only() -> None:
    assert listen_addresses((), remote=False) == ("127.0.0.1",)
    assert "127.0.0.1" not in listen_addresses((), remote=True)
