"""The lint's own tests: each rule catches a bad file, and lets the good one beside it pass."""

from __future__ import annotations

import pytest

from support.files import ROOT, load


@pytest.fixture(scope="module")
def lint():
    return load("tools/lint.py")


ROOMS = "foreach(room common codec transport plan workflow routes task coordinator planner engine session bindings)"
SRC = "casync_core/src"


def findings(lint, **files: str) -> list[str]:
    """What the lint says about `files` (path=text), with the list of rooms beside them."""
    tree = {"casync_core/CMakeLists.txt": ROOMS, **files}
    return [str(finding) for finding in lint.check(tree) if not finding.warning]


def header(*lines: str) -> str:
    return "\n".join(["#pragma once", "", *lines, ""])


@pytest.mark.parametrize("header_name", ["thread", "mutex", "atomic", "chrono", "fstream"])
def test_a_room_that_decides_has_no_effects(lint, header_name):
    text = header(f"#include <{header_name}>")
    assert findings(lint, **{f"{SRC}/engine/tensor_table.hpp": text}) == [
        f"{SRC}/engine/tensor_table.hpp:3: includes <{header_name}>, and engine/ only decides"
    ]
    assert findings(lint, **{f"{SRC}/session/names.hpp": text}) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (f"{SRC}/task/task_graph.hpp", '#include "engine/engine.hpp"'),
        (f"{SRC}/task/task_graph.hpp", '#  include "session/session.hpp"'),
        (f"{SRC}/transport/mpi/requests.hpp", '#include "workflow/builder.hpp"'),
        (f"{SRC}/task/task_graph.hpp", '#include "../common/hash.hpp"'),
        (f"{SRC}/task/task_graph.hpp", '#include "helpers/text.hpp"'),
        (f"{SRC}/planner/cost.hpp", '#include "coordinator/local_policy.hpp"'),
        ("casync_core/include/casync/codec.hpp", '#include "common/hash.hpp"'),
    ],
)
def test_include_against_the_direction_is_found(lint, path, line):
    (finding,) = findings(lint, **{path: header(line)})
    assert finding.startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (f"{SRC}/task/task_graph.hpp", '#include "workflow/builder.hpp"'),
        (f"{SRC}/task/task_graph.hpp", '#include "task/instance.hpp"'),
        (f"{SRC}/task/task_graph.hpp", '#include "casync/workflow.hpp"'),
        (f"{SRC}/task/task_graph.hpp", "#include <vector>"),
        (f"{SRC}/planner/cost.hpp", '#include "routes/routes.hpp"'),
        ("casync_core/include/casync/codec.hpp", '#include "casync/types.hpp"'),
    ],
)
def test_include_along_the_direction_passes(lint, path, line):
    assert findings(lint, **{path: header(line)}) == []


def test_a_file_beside_the_including_one_is_its_own_room(lint):
    own = {f"{SRC}/codec/cpu/onebit.hpp": header('#include "kernels.hpp"'), f"{SRC}/codec/cpu/kernels.hpp": header()}
    assert findings(lint, **own) == []


def test_the_order_of_the_rooms_is_the_one_of_cmake(lint):
    swapped = {"casync_core/CMakeLists.txt": "foreach(room engine task)"}
    bad = {f"{SRC}/engine/engine.hpp": header('#include "task/task_graph.hpp"')}
    assert len(findings(lint, **swapped, **bad)) == 1
    assert findings(lint, **bad) == []


def test_a_folder_that_is_no_room_is_found(lint):
    (finding,) = findings(lint, **{f"{SRC}/misc/text.hpp": header()})
    assert "not a room" in finding


def test_a_core_without_a_list_of_rooms_is_found(lint):
    (finding,) = findings(lint, **{"casync_core/CMakeLists.txt": ""})
    assert "order of the rooms" in finding


def test_a_library_that_depends_downwards_is_found(lint):
    cmake = "casync_room(task SOURCES template.cc\n  DEPENDS common engine)\n"
    (finding,) = findings(lint, **{f"{SRC}/task/CMakeLists.txt": cmake})
    assert "engine" in finding
    part = "casync_room(transport_mpi SOURCES a.cc DEPENDS transport)\n"
    assert findings(lint, **{f"{SRC}/transport/mpi/CMakeLists.txt": part}) == []


@pytest.mark.parametrize("included", ["torch/extension.h", "ATen/ATen.h", "tensorflow/core/op.h", "mxnet/c_api.h"])
def test_a_framework_header_in_the_core_is_found(lint, included):
    (finding,) = findings(lint, **{f"{SRC}/bindings/module.cc": f"#include <{included}>\n"})
    assert included in finding


def test_python_and_mpi_headers_have_their_rooms(lint):
    for room, included in (("engine", "pybind11/pybind11.h"), ("bindings", "mpi.h"), ("transport/local", "mpi.h")):
        assert len(findings(lint, **{f"{SRC}/{room}/a.cc": f"#include <{included}>\n"})) == 1
    for path, included in (("bindings/a.cc", "pybind11/pybind11.h"), ("transport/mpi/a.cc", "mpi.h")):
        assert findings(lint, **{f"{SRC}/{path}": f"#include <{included}>\n"}) == []


def test_headers_say_pragma_once_and_files_have_our_endings(lint):
    (finding,) = findings(lint, **{f"{SRC}/task/a.hpp": "#ifndef A\n#define A\n#endif\n"})
    assert "#pragma once" in finding
    for name in ("a.h", "a.cpp", "a.c"):
        assert len(findings(lint, **{f"tests/cpp/{name}": ""})) == 1


def test_a_long_file_is_a_warning_only(lint):
    tree = {"casync_core/CMakeLists.txt": ROOMS, "benchmarks/a.py": "x = 1\n" * 451, "benchmarks/b.py": "x = 1\n" * 450}
    assert [(finding.path, finding.warning) for finding in lint.check(tree)] == [("benchmarks/a.py", True)]


@pytest.mark.parametrize(
    "line",
    [
        "log = '/work/x/build/log'",
        'open("/root/x")',
        "cd /tmp/venv && make",
        "cd /tmp/venv_pkg/bin",
        "PATH=/home/ann/bin",
        "pip install --index-url https://pypi.org/simple",
        "see files.pythonhosted.org",
        "echo deb http://deb.debian.org/debian",
        "curl https://example.com/x",
    ],
)
def test_machine_paths_and_hosts_are_found(lint, line):
    (finding,) = findings(lint, **{"docs/a.md": line + "\n"})
    assert finding.startswith("docs/a.md:1: ")


@pytest.mark.parametrize(
    "line",
    ["tests/work/x", "the /proc/self/maps of it", "https://doi.org/10.1/2", "$HOME/work", "{x}/home/y", "network/root"],
)
def test_other_paths_and_listed_hosts_pass(lint, line):
    assert findings(lint, **{"docs/a.md": line + "\n"}) == []


@pytest.mark.parametrize(
    "line",
    [
        "sys.path.insert(0, 'frameworks')",
        "PYTHONPATH=frameworks",
        'pythonpath = ["frameworks"]',
        "PYTHONPATH=./frameworks",
    ],
)
def test_frameworks_on_the_module_path_is_found(lint, line):
    assert len(findings(lint, **{"conftest.py": line + "\n"})) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("casync/config/settings.py", "from casync.session import Session"),
        ("casync/config/settings.py", "from casync.session import default, errors"),
        ("casync/config/settings.py", "def f():\n    from casync import _core"),
        ("casync/launcher/job.py", "import casync._core"),
        ("casync/launcher/job.py", "from ..session import Session"),
        ("casync/compll/check.py", "from casync import config"),
        ("casync/checkpoint/optimizer.py", "import torch.nn"),
        ("casync/checkpoint/optimizer.py", "from casync.torch import ops"),
        ("casync/checkpoint/optimizer.py", "from casync import torch"),
        ("casync/__init__.py", "from casync.checkpoint import save_state"),
        ("casync/novelty.py", ""),
        ("frameworks/torch/ops.py", "import tensorflow"),
        ("frameworks/mxnet/ops.py", "from casync.torch import ops"),
    ],
)
def test_an_import_of_what_stands_above_is_found(lint, path, text):
    (finding,) = findings(lint, **{path: f"{text}\n"})
    assert finding.startswith(f"{path}:{2 if text.startswith('def') else 1}: ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("casync/session/session.py", "from casync import config\nfrom casync.errors import CasyncError"),
        ("casync/config/settings.py", "from __future__ import annotations\nimport numpy"),
        (
            "casync/tensors/signature.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from casync.session.default import init",
        ),
        ("casync/launcher/job.py", "from casync.launcher.ledger import Ledger\nfrom . import ledger\nimport casync"),
        ("casync/compll/build.py", "from casync import _core, errors"),
        ("casync/__init__.py", "def f():\n    from casync import checkpoint"),
        ("frameworks/torch/ops.py", "import torch\nfrom casync.session import default\nfrom . import scaling"),
    ],
)
def test_an_import_of_what_stands_below_passes(lint, path, text):
    assert findings(lint, **{path: f"{text}\n"}) == []


def test_a_circle_of_imports_is_found(lint):
    circle = {
        "frameworks/torch/a.py": "from . import b\n",
        "frameworks/torch/b.py": "def f():\n    from .c import g\n",
        "frameworks/torch/c.py": "from casync.session import default\nfrom .a import h\n",
    }
    (finding,) = findings(lint, **circle)
    assert "a circle of imports" in finding and all(f"frameworks.torch.{name}" in finding for name in "abc")
    straight = {
        **circle,
        "frameworks/torch/c.py": "",
        "frameworks/torch/__init__.py": "from .a import b\nfrom . import c\n",
    }
    assert findings(lint, **straight) == []


def test_whoever_reaches_through_a_session_is_found(lint):
    reach = "def f(session):\n    session.core.poll(1)\n    session._core_session.poll(1)\n"
    assert [text.split(": ")[0] for text in findings(lint, **{"frameworks/torch/a.py": reach})] == [
        "frameworks/torch/a.py:2", "frameworks/torch/a.py:3",
    ]  # fmt: skip
    assert findings(lint, **{"casync/session/session.py": reach, "tests/python/a.py": reach}) == []
    below = {"casync/checkpoint/job.py": "from casync import _core\n_core.check_codec('none')\n"}
    assert findings(lint, **below) == []


def test_third_party_source_is_found(lint):
    assert len(findings(lint, **{"third_party/json.hpp": header()})) == 1
    assert len(findings(lint, **{"benchmarks/a.py": "# Copyright (c) 2019 Somebody\n"})) == 1
    assert findings(lint, LICENSE="Copyright 2004 X\n") == []


def test_this_repository_is_clean(lint):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert [str(finding) for finding in lint.check(lint.read_tree(ROOT)) if not finding.warning] == []
