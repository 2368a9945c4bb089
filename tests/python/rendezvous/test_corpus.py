"""What fuzzing said at the ports where ranks meet, once more, without a fuzzer."""

from __future__ import annotations

import tarfile

import pytest

from support.files import ROOT, load

strangers = load("tests/fuzz/strangers.py")


def inputs() -> dict[str, bytes]:
    found = {}
    with tarfile.open(ROOT / "tests/fuzz/corpus/strangers.tar.gz") as packed:
        for member in packed:
            if (file := packed.extractfile(member)) is not None:
                found[member.name] = file.read()
    return found


@pytest.mark.parametrize("said", [pytest.param(said, id=name) for name, said in inputs().items()])
def test_who_says_this_is_hung_up_on_or_answered(said: bytes) -> None:
    strangers.look_at(said)
