"""A .cll file's text: what editors add to it is not part of it, and what is no text is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from casync.compll.library import library_files
from casync.compll.source import read_source
from casync.errors import InvalidArgumentError

ONEBIT = library_files()["onebit"]


@pytest.mark.parametrize(("mark", "ending"), [(b"\xef\xbb\xbf", b"\n"), (b"", b"\r\n"), (b"\xef\xbb\xbf", b"\r\n")])
def test_what_an_editor_adds_makes_no_other_codec(tmp_path: Path, mark: bytes, ending: bytes) -> None:
    file = tmp_path / "onebit.cll"
    file.write_bytes(mark + ONEBIT.read_bytes().replace(b"\n", ending))
    assert read_source(file) == read_source(ONEBIT)


def test_what_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    binary = tmp_path / "binary.cll"
    binary.write_bytes(b"float \xff")
    for path, reason in [
        (binary, "byte 6 is no UTF-8 text"),
        (tmp_path, "Is a directory"),
        (tmp_path / "nowhere.cll", "No such file or directory"),
    ]:
        with pytest.raises(InvalidArgumentError) as caught:
            read_source(path)
        assert str(caught.value) == f"{path} cannot be read: {reason}"
