"""The texts that fuzzing found worth keeping, once more, without a fuzzer."""

from __future__ import annotations

import tarfile

import pytest

from support.files import ROOT, load

compll_text = load("tests/fuzz/compll_text.py")


def inputs() -> dict[str, bytes]:
    found = {}
    with tarfile.open(ROOT / "tests/fuzz/corpus/compll_text.tar.gz") as packed:
        for member in packed:
            if (file := packed.extractfile(member)) is not None:
                found[member.name] = file.read()
    return found


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in inputs().items()])
def test_an_input_is_a_codec_or_a_diagnostic(text: bytes) -> None:
    compll_text.look_at(text)
