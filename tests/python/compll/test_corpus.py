"""The texts that fuzzing found worth keeping, once more, without a fuzzer."""

from __future__ import annotations

import importlib.util
import tarfile
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"

spec = importlib.util.spec_from_file_location("compll_text", FUZZ / "compll_text.py")
assert spec is not None and spec.loader is not None
compll_text = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compll_text)


def inputs() -> dict[str, bytes]:
    found = {}
    with tarfile.open(FUZZ / "corpus" / "compll_text.tar.gz") as packed:
        for member in packed:
            if (file := packed.extractfile(member)) is not None:
                found[member.name] = file.read()
    return found


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in inputs().items()])
def test_an_input_is_a_codec_or_a_diagnostic(text: bytes) -> None:
    compll_text.look_at(text)
