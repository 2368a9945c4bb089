"""The lint of this repository: which way includes and imports point, what must not be in a file, then ruff, mypy and
clang-format.

Each rule is a function from the tree (path -> text) to findings, so tests give it small trees. The order of the rooms
is read from casync_core/CMakeLists.txt, the one place that states it; that of the Python modules is PYTHON_LAYERS here.

    python tools/lint.py              everything
    python tools/lint.py --structure  only the rules of this file
"""

from __future__ import annotations

import argparse
import ast
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
CORE = "casync_core/src/"
CONTRACTS = "casync_core/include/casync/"
LONG_FILE = 450

# Rooms that may see less than everything above them: a planner that saw the coordinator could not be asked beforehand.
NARROW = {"planner": {"common", "codec", "workflow", "routes", "collectives", "plan"}}
# Rooms that decide: time is passed to them, and nothing in them waits, locks or reads a file.
PURE = ("engine", "task", "coordinator", "planner", "routes", "collectives", "workflow", "progress")
IMPURE_HEADERS = ("thread", "mutex", "atomic", "chrono", "fstream")
# Headers of other projects, and the one folder that may include them. None: nowhere in the core.
FOREIGN = {
    r"(torch|ATen|c10|caffe2)/": None,
    r"(tensorflow|tsl|xla|absl)/": None,
    r"(mxnet|dmlc|nnvm|mshadow)/": None,
    r"(Python\.h|pybind11/)": ("bindings/",),
    r"mpi(-ext)?\.h": ("transport/mpi/", "bindings/mpi_module.cc"),
}
IN_C = ("casync_core/include/casync/c_api.h", "tests/python/shared/support/glue.c")
# The modules of casync/ from the bottom up. Each imports what stands below its line, or on it.
PYTHON_LAYERS = (
    ("_constants",),
    ("errors",),
    ("config", "plan"),
    ("rendezvous",),
    ("launcher",),  # this and all below are there where the compiled modules do not load
    ("_core", "_mpi"),
    ("compll", "cuda", "glue", "observe", "tensors"),
    ("codecs", "transport"),
    ("session",),
    ("checkpoint", "common", "metrics", "runner"),
    ("collectives",),
    ("relaxed",),
    ("bench",),
    ("cli",),
    ("__main__",),
)
# Modules that may see less than everything below them: a codec is compiled where there is no job.
NARROW_MODULES = {"compll": {"_constants", "errors", "_core"}}
# Packages that only a folder of frameworks/ of the same name imports, as well as what is installed from that folder.
FRAMEWORKS = ("torch", "tensorflow", "keras", "mxnet", "jax", "lightning", "accelerate", "transformers")
# But for Keras, which runs on others, and which TensorFlow has in it, and for what is built on PyTorch.
TIED = {
    "keras": {"tensorflow", "torch"},
    "tensorflow": {"keras"},
    "lightning": {"torch"},
    "accelerate": {"torch"},
    "transformers": {"torch", "accelerate"},
}
# Hosts that a file may link to. Anything else, a package registry above all, is named by what it is.
LINKED_HOSTS = {
    "www.apache.org",
    "arxiv.org",
    "doi.org",
    "www.open-mpi.org",
    "www.mpi-forum.org",
    "www.w3.org",
    "localhost",
}

Tree = Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'warning: ' if self.warning else ''}{self.text}"


def lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def rooms(tree: Tree) -> list[str]:
    """The rooms from the bottom up."""
    stated = re.search(r"foreach\(room ([\w ]+)\)", tree.get("casync_core/CMakeLists.txt", ""))
    return stated[1].split() if stated else []


def includes(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, path, quoted) of each #include."""
    for number, line in lines(text):
        if match := re.match(r'\s*#\s*include\s*(["<])([^">]+)', line):
            yield number, match[2], match[1] == '"'


def is_cpp(path: str) -> bool:
    return path.endswith((".hpp", ".cc", ".cuh", ".cu"))


def check_include_direction(tree: Tree) -> Iterator[Finding]:
    """A room's files include public contracts, their own room and rooms above it in the house's list."""
    order = rooms(tree)
    if not order:
        yield Finding("casync_core/CMakeLists.txt", 1, "no `foreach(room ...)` states the order of the rooms")
        return
    for path, text in tree.items():
        if not path.startswith((CORE, CONTRACTS)) or not is_cpp(path):
            continue
        room = path.removeprefix(CORE).split("/")[0] if path.startswith(CORE) else None
        if room is not None and room not in order:
            yield Finding(path, 1, f"{room}/ is not a room of casync_core/CMakeLists.txt")
            continue
        for number, included, quoted in includes(text):
            if not quoted and not included.startswith("casync/"):
                continue
            if ".." in PurePosixPath(included).parts:
                yield Finding(path, number, f"includes {included}: name it from casync_core/src/")
            elif included.startswith("casync/") or (quoted and str(PurePosixPath(path).parent / included) in tree):
                continue
            elif room is None:
                yield Finding(path, number, f"a public contract includes {included}: it may include only casync/*.hpp")
            else:
                yield from _check_room(path, number, room, included, order)


def _check_room(path: str, number: int, room: str, included: str, order: list[str]) -> Iterator[Finding]:
    other = included.split("/")[0]
    above = order[: order.index(room)]
    if other == room:
        return
    if other not in order:
        yield Finding(path, number, f"includes {included}: neither a room's file nor a public contract (casync/*.hpp)")
    elif other not in above:
        yield Finding(path, number, f"{room}/ includes {included}, but {other}/ comes below it in the list of rooms")
    elif other not in NARROW.get(room, above):
        yield Finding(path, number, f"{room}/ includes {included}, but may see only {', '.join(sorted(NARROW[room]))}")


def check_room_dependencies(tree: Tree) -> Iterator[Finding]:
    """casync_room(... DEPENDS ...) of a room names only rooms that it may include."""
    order = rooms(tree)
    for path, text in tree.items():
        if not path.startswith(CORE) or not path.endswith("CMakeLists.txt"):
            continue
        room = path.removeprefix(CORE).split("/")[0]
        if room not in order:
            continue
        for match in re.finditer(r"DEPENDS\s+([\w\s]+?)\s*\)", text):
            number = text.count("\n", 0, match.start()) + 1
            for name in match[1].split():
                other = next((known for known in order if name == known or name.startswith(f"{known}_")), None)
                if other and other != room:
                    yield from _check_room(path, number, room, f"{other}/", order)


def check_purity(tree: Tree) -> Iterator[Finding]:
    """A room that decides has no effects: a test of it needs no thread, no sleep and no file."""
    for path, text in tree.items():
        if not is_cpp(path) or not path.startswith(tuple(f"{CORE}{room}/" for room in PURE)):
            continue
        for number, included, _ in includes(text):
            if included in IMPURE_HEADERS:
                yield Finding(path, number, f"includes <{included}>, and {path.split('/')[2]}/ only decides")


def check_foreign_headers(tree: Tree) -> Iterator[Finding]:
    """No framework's header in the core: one build serves every release of every framework."""
    for path, text in tree.items():
        if not path.startswith("casync_core/") or not is_cpp(path):
            continue
        for number, included, _ in includes(text):
            for pattern, places in FOREIGN.items():
                if re.match(pattern, included) and not path.startswith(tuple(CORE + place for place in places or ())):
                    allowed = f"only {' and '.join(places)} may" if places else "no file of the core may"
                    yield Finding(path, number, f"includes {included}: {allowed}")


def imports(path: str, text: str, submodules: Collection[str] = ()) -> Iterator[tuple[int, str, bool]]:
    """(line, module, at the top) of each import by a file, with a name of its own for each module of ours that `from
    casync import ...` names, and for each of `submodules` that `from PACKAGE import ...` does. Imports for annotations
    alone are left out: they load nothing.
    """
    parsed = ast.parse(text, path)
    tests = (
        node for node in ast.walk(parsed) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )
    idle = {child for test in tests for statement in test.body for child in ast.walk(statement)}
    package = list(PurePosixPath(path).parent.parts)
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import) and node not in idle:
            for alias in node.names:
                yield node.lineno, alias.name, node in parsed.body
        elif isinstance(node, ast.ImportFrom) and node not in idle:
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inner = [f"{base}.{alias.name}" for alias in node.names]
            modules = inner if base == "casync" else [name if name in submodules else base for name in inner]
            for module in dict.fromkeys(modules):
                yield node.lineno, module, node in parsed.body


def check_python_layers(tree: Tree) -> Iterator[Finding]:
    """Modules of casync/ import modules that PYTHON_LAYERS has below them. No framework but in its folder."""
    floor = {name: number for number, layer in enumerate(PYTHON_LAYERS) for name in layer}
    for path, text in tree.items():
        parts = PurePosixPath(path).with_suffix("").parts
        if not path.endswith(".py") or parts[0] not in ("casync", "frameworks"):
            continue
        own = parts[1]
        if parts[0] == "casync" and own not in floor and own != "__init__":
            yield Finding(path, 1, f"casync.{own} is on no line of PYTHON_LAYERS in tools/lint.py")
            continue
        for number, module, at_top in imports(path, text):
            names = module.split(".")
            ours = names[1] if names[0] == "casync" and len(names) > 1 else None
            tied = {own, *TIED.get(own, ())} if parts[0] == "frameworks" else set()
            if foreign := {names[0], ours}.intersection(FRAMEWORKS) - tied:
                yield Finding(path, number, f"imports {module}: only frameworks/{foreign.pop()}/ may")
            elif parts[0] == "frameworks" or ours not in floor or ours == own:
                continue
            elif own == "__init__":
                if at_top:
                    yield Finding(path, number, f"imports {module} for every command: import it where it is needed")
            elif floor[ours] > floor[own]:
                yield Finding(path, number, f"imports {module}, which stands above casync.{own} in PYTHON_LAYERS")
            elif ours not in NARROW_MODULES.get(own, floor):
                seen = ", ".join(sorted(NARROW_MODULES[own]))
                yield Finding(path, number, f"imports {module}, but casync.{own} may see only {seen}")


def check_one_file_names_cuda(tree: Tree) -> Iterator[Finding]:
    """Of torch's interface to CUDA, which no CI runs, one small file knows."""
    for path, text in tree.items():
        if not path.startswith(("casync/", "frameworks/")) or path == "frameworks/torch/device.py":
            continue
        for number, line in lines(text):
            if re.search(r"\btorch\.cuda\.\w", line):
                yield Finding(path, number, "names torch.cuda, which is for frameworks/torch/device.py alone")


def check_no_circles(tree: Tree) -> Iterator[Finding]:
    """No module imports what imports it, at whatever place of a file. Only casync/__init__.py, which loads nothing by
    itself, names modules that stand above it.
    """
    known = {
        ".".join(PurePosixPath(path.removesuffix("/__init__.py")).with_suffix("").parts): path
        for path in tree
        if path.endswith(".py") and path.startswith(("casync/", "frameworks/")) and path != "casync/__init__.py"
    }
    needs: dict[str, set[str]] = {}
    for name, path in known.items():
        found = {module for _, module, _ in imports(path, tree[path], submodules=known)}
        needs[name] = {module for module in found if module in known and module != name}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        yield Finding(known[error.args[1][0]], 1, f"a circle of imports: {' <- '.join(error.args[1])}")


def check_session_is_a_facade(tree: Tree) -> Iterator[Finding]:
    """Nobody but casync/session reaches through a Session to the core's."""
    for path, text in tree.items():
        if (
            not path.startswith(("casync/", "frameworks/"))
            or not path.endswith(".py")
            or path.startswith("casync/session")
        ):
            continue
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.Attribute) and node.attr in ("core", "_core_session"):
                yield Finding(
                    path, node.lineno, f".{node.attr} of a session: ask for a method of casync.session.Session"
                )


def check_headers(tree: Tree) -> Iterator[Finding]:
    """.hpp and .cc only, and each header says `#pragma once`. What glue in C reads, and its test, are C."""
    for path, text in tree.items():
        if path.endswith((".h", ".hh", ".cpp", ".cxx", ".c")) and path not in IN_C:
            yield Finding(path, 1, "C++ files end in .hpp and .cc")
        if path.endswith((".hpp", ".cuh")) and not re.search(r"^#pragma once$", text, re.MULTILINE):
            yield Finding(path, 1, "no `#pragma once`")


def check_length(tree: Tree) -> Iterator[Finding]:
    for path, text in tree.items():
        count = text.count("\n")
        if path.endswith((".hpp", ".cc", ".cu", ".cuh", ".py")) and count > LONG_FILE:
            yield Finding(path, 1, f"{count} lines: more than one idea? ({LONG_FILE} is where we ask)", warning=True)


def check_machine(tree: Tree) -> Iterator[Finding]:
    """No path of one machine, no registry's address: what a file names must be there for everybody."""
    place = re.compile(r"(?<![\w.$}/*-])/((work|root|home|opt/wheels)/\w|tmp/venv)[\w/]*")
    registry = re.compile(r"\b((py" r"pi|pythonhosted|npmjs|crates|debian|download\.pytorch)\.(org|com|io|net))\b")
    url = re.compile(r"https?://([\w.-]+)")
    for path, text in tree.items():
        for number, line in lines(text):
            if match := place.search(line):
                yield Finding(path, number, f"{match[0]} is a path of one machine")
            for host in {match[1] for match in registry.finditer(line)}:
                yield Finding(path, number, f"{host}: name a registry by what it is, not by its address")
            hosts = (
                set() if path.endswith(".svg") else {match[1] for match in url.finditer(line)}
            )  # XML names, no links
            for host in hosts - LINKED_HOSTS:
                if not registry.search(host):
                    yield Finding(path, number, f"{host} is not among the hosts that tools/lint.py lists")


def check_frameworks_not_on_path(tree: Tree) -> Iterator[Finding]:
    """frameworks/ on sys.path would make frameworks/torch shadow torch."""
    place = r"""(\bsys\.path\b|\bsite\.addsitedir\b|(?i:\bpythonpath)["'\]]*\s*=)"""
    tempting = re.compile(place + r""".*?(?<!\w)frameworks\b(?!/\w)""")
    for path, text in tree.items():
        for number, line in lines(text):
            if tempting.search(line):
                yield Finding(path, number, "frameworks/ on sys.path: frameworks/torch would shadow torch")


def check_third_party(tree: Tree) -> Iterator[Finding]:
    """Everything in the tree is ours: other people's source comes from a package."""
    folder = re.compile(r"(^|/)(third_party|thirdparty|vendor|vendored|external|extern)/")
    claim = re.compile(r"(Copyright (\(c\)|©|\d{4})|SPDX-FileCopyrightText|All rights reserved)", re.IGNORECASE)
    for path, text in tree.items():
        if folder.search(path):
            yield Finding(path, 1, "a folder for other people's source")
        if path == "LICENSE":
            continue
        for number, line in lines(text):
            if match := claim.search(line):
                yield Finding(path, number, f"'{match[0]}': third-party source is not copied into the tree")


RULES: list[Callable[[Tree], Iterator[Finding]]] = [
    check_include_direction,
    check_room_dependencies,
    check_purity,
    check_foreign_headers,
    check_python_layers,
    check_no_circles,
    check_one_file_names_cuda,
    check_session_is_a_facade,
    check_headers,
    check_length,
    check_machine,
    check_frameworks_not_on_path,
    check_third_party,
]
# A rule's own words and the bad examples that its tests give it.
EXEMPT = ("tools/lint.py", "tests/python/lint/")


def check(tree: Tree) -> list[Finding]:
    return [finding for rule in RULES for finding in rule(tree) if not finding.path.startswith(EXEMPT)]


def read_tree(root: Path) -> dict[str, str]:
    """The text files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    tree = {}
    for name in filter(None, listed.split("\0")):
        path = root / name
        if path.is_file():
            try:
                tree[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # data, not text
    return tree


def check_format(paths: list[str]) -> list[str]:
    """The C++ files that clang-format would change."""
    command = ["clang-format", "--dry-run", "--ferror-limit=1", *paths]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(f"clang-format failed: {said.stderr}")
    return sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning: code should be", said.stderr, re.MULTILINE)))


def link_package() -> list[Path]:
    """Makes build/mypy, with a casync of links in which frameworks/torch is casync/torch, as it is installed: for what
    looks for files, as mypy, editors and Sphinx do. Nothing else stays there: mypy would prefer it to this repository's
    own files. Returns what it links to.
    """
    package = ROOT / "build" / "mypy" / "casync"
    for stray in package.parent.glob("*") if package.parent.exists() else ():
        if stray.is_symlink():
            stray.unlink()
    package.mkdir(parents=True, exist_ok=True)
    sources = [*(ROOT / "casync").iterdir(), *(folder.parent for folder in (ROOT / "frameworks").glob("*/__init__.py"))]
    wanted = {source.name: source for source in sources if source.name != "__pycache__"}
    for link in package.iterdir():
        if link.name not in wanted and link.is_symlink():
            link.unlink()
    for name, source in wanted.items():
        if not (package / name).is_symlink():
            (package / name).symlink_to(os.path.relpath(source, package))
    return sources


def check_types() -> bool:
    """mypy over casync, as it is installed, and the tests: whether there are findings, which are printed."""
    sources = link_package()
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    adaptors = "|".join(source.name for source in sources if source.parent.name == "frameworks")
    shown = re.sub(rf"^build/mypy/casync/(?=({adaptors})/)", "frameworks/", said.stdout, flags=re.MULTILINE)
    sys.stdout.write(re.sub(r"^build/mypy/", "", shown, flags=re.MULTILINE))
    sys.stdout.write(said.stderr)
    return said.returncode != 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structure", action="store_true", help="only the rules of this file")
    parser.add_argument("--links", action="store_true", help="only make build/mypy, for editors and Sphinx")
    options = parser.parse_args(argv)
    if options.links:
        link_package()
        return 0
    tree = read_tree(ROOT)
    findings = check(tree)
    for finding in findings:
        print(finding)
    failures = sum(not finding.warning for finding in findings)
    print(f"structure: {len(tree)} files, {failures} findings, {len(findings) - failures} warnings")
    failed = failures > 0
    if not options.structure:
        ruff = subprocess.run(["ruff", "check", "--quiet", "--output-format=concise", "."], cwd=ROOT).returncode
        print(f"ruff: {'findings above; `make format` puts some right' if ruff else 'clean'}")
        unlike = subprocess.run(["ruff", "format", "--quiet", "--check", "."], cwd=ROOT, capture_output=True, text=True)
        print(f"{unlike.stdout}ruff format: {'files for `make format` above' if unlike.returncode else 'clean'}")
        types = check_types()
        print(f"mypy: {'findings above' if types else 'clean'}")
        unformatted = check_format([path for path in tree if is_cpp(path)])
        for path in unformatted:
            print(f"{path}: not as .clang-format has it")
        print(f"clang-format: {len(unformatted)} files for `make format`")
        failed |= ruff != 0 or unlike.returncode != 0 or types or bool(unformatted)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
