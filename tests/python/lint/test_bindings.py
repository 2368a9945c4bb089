"""The suite of tests/python/adaptor leaves no adaptor out."""

from support.bindings import FRAMEWORKS, ON_DEVICE
from support.files import ROOT


def test_every_adaptor_has_a_binding():
    adaptors = {path.parent.name for path in (ROOT / "frameworks").glob("*/__init__.py")}
    adaptors -= {"keras", "lightning", "accelerate", "transformers"}  # which have no tensors of their own
    assert adaptors <= set(FRAMEWORKS), "add it to support/bindings, and so to the suite"
    bindings = {path.stem for path in (ROOT / "tests/python/shared/support/bindings").glob("[!_]*.py")}
    assert bindings == {*FRAMEWORKS, ON_DEVICE}
