"""What the build writes for Python out of the core's headers, and who can be imported with nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from casync import _constants, _core
from casync.config.settings import Config
from casync.errors import ERROR_KINDS, CasyncError, error_of
from casync.plan.plans import GradientPlan
from casync.tensors.signature import OpKind, Sum

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture
def session():
    config = Config(compression="none")
    session = _core.Session(None, config.core_options(0, 1), lambda level, text, fields: None)
    yield session
    session.shutdown()


@pytest.mark.parametrize("module", ["config", "errors", "launcher", "launcher.cli", "launcher.doctor", "plan"])
def test_it_can_be_imported_where_the_core_does_not_load(module, tmp_path):
    hidden = "import sys; sys.modules['casync._core'] = sys.modules['casync._mpi'] = None; "
    program = f"{hidden}import casync.{module}; assert sys.modules['casync._core'] is None"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=tmp_path)


def test_an_option_that_the_core_does_not_know_is_refused_by_name():
    with pytest.raises(ValueError, match="the core has no option colour"):
        _core.Session(None, {"colour": 1}, lambda level, text, fields: None)


def test_the_stub_has_the_names_of_the_module():
    stub = ast.parse((CHECKOUT / "casync" / "_constants.pyi").read_text())
    named = {node.target.id: ast.unparse(node.annotation) for node in stub.body if isinstance(node, ast.AnnAssign)}
    assert named.keys() == {name for name in vars(_constants) if name.isupper()}
    for name, annotation in named.items():
        assert f"[{type(getattr(_constants, name)).__name__}" in annotation, name


def test_numbers_are_those_of_the_core(session):
    """The core's own errors name what a number stands for."""
    int64, adasum = _constants.DTYPES.index("int64"), _constants.REDUCE_OPS.index("Adasum")
    for kind in ("allreduce", "reducescatter"):
        with pytest.raises(CasyncError) as caught:
            session.define("w", kind=_constants.OP_KINDS.index(kind), dtype=int64, op=adasum, rows=5, cols=1)
        assert caught.value.op == kind
        assert "Adasum" in str(caught.value)
    with pytest.raises(CasyncError, match="not int64"):
        session.define("w", kind=OpKind.ALLREDUCE, dtype=int64, op=adasum, rows=5, cols=1)
    with pytest.raises(CasyncError) as caught:
        session.define("w", kind=OpKind.BROADCAST, dtype=int64, op=Sum, rows=5, cols=1, root=7)
    assert caught.value.op == "broadcast"


def test_every_class_of_error_has_a_kind_of_the_core():
    def classes(root):
        return [root, *(below for child in root.__subclasses__() for below in classes(child))]

    assert {item.USUAL_KIND for item in classes(CasyncError)} <= set(ERROR_KINDS)


def test_kinds_are_documented():
    text = (CHECKOUT / "docs" / "errors.md").read_text()
    assert [kind for kind in ERROR_KINDS if f"`{kind}`" not in text] == []


def test_a_plan_has_the_fields_of_the_core(session):
    import ctypes

    memory = (ctypes.c_float * 4)()
    registration = session.define("w", kind=OpKind.ALLREDUCE, dtype=0, op=Sum, rows=4, cols=1)
    address = ctypes.addressof(memory)
    session.synchronize(session.submit(registration, address, address, 0, False))
    measured = ["measured_s"]  # by each rank, so it is no part of what ranks agree on
    assert [*session.plans()["w"], *measured] == [field.name for field in fields(GradientPlan)]


def test_every_kind_of_error_has_its_class():
    """Glue in C is told the number; each class is one whose usual kind, or whose base, says so."""
    made = {kind: error_of(kind, "text", tensor="t", peer=1) for kind in ERROR_KINDS}
    assert {kind for kind, error in made.items() if type(error) is CasyncError} == {"internal"}
    for kind, error in made.items():
        assert (str(error), error.kind, error.tensor, error.peer) == ("text", kind, "t", 1)
    assert {type(error).USUAL_KIND for error in made.values()} >= {"mismatch", "peer_gone", "aborted", "stalled"}
