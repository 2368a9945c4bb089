"""A file of one's own: translated, compiled, kept, and refused where it cannot be."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from pathlib import Path

import pytest

from casync.compll import plugin
from casync.compll.conformance.elements import FLOAT32
from casync.compll.diagnostics import CompllError
from casync.compll.library import library_files
from casync.compll.plugin import compile_file, resolve
from casync.errors import CasyncError, InvalidArgumentError, NotAvailableError

ABSMAX = Path(__file__).parents[2] / "compll" / "quantisers" / "absmax.cll"
TEXT = ABSMAX.read_text(encoding="utf-8")
SPARSE = """
properties { unit = whole; aggregation = gather; feedback = none; bound = BOUND; }
uint1 large(float x) { return abs(x) >= 1; }
void encode(float* gradient, uint8* compressed) {
    int32* index, float* value = filter(gradient, large);
    compressed = concat(index, value);
}
void decode(uint8* compressed, float* gradient) {
    int32* index, float* value = extract(compressed);
    gradient = scatter(index, value, gradient.size);
}
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "CASYNC_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.parametrize("spec", ["none", "onebit", "terngrad(bits=4)", "auto(onebit, fp16)"])
def test_what_names_no_file_stays(spec: str) -> None:
    assert resolve(spec) == spec


def test_a_file_is_compiled_once(environ: dict[str, str]) -> None:
    first = compile_file(ABSMAX, TEXT, environ)
    before = first.stat().st_mtime_ns
    assert compile_file(ABSMAX, TEXT, environ) == first and first.stat().st_mtime_ns == before
    assert not [path for path in first.parent.iterdir() if path.is_dir()], "what was built with is removed"


def test_any_file_name_will_do(environ: dict[str, str]) -> None:
    for name in ("3-levels, mine.cll", "float.cll"):
        assert compile_file(Path(name), TEXT, environ).exists()


def test_another_text_is_another_object(environ: dict[str, str]) -> None:
    other = compile_file(ABSMAX, TEXT.replace("unit = 512", "unit = 1024"), environ)
    assert other != compile_file(ABSMAX, TEXT, environ)


def test_the_core_knows_it_by_the_digits_of_its_text(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    from casync import _core

    monkeypatch.setenv("CASYNC_CACHE_DIR", environ["CASYNC_CACHE_DIR"])
    name = f"absmax@{hashlib.sha256(TEXT.encode()).hexdigest()[:8]}"
    assert resolve(f" {ABSMAX} ") == name and resolve(str(ABSMAX)) == name
    assert _core.check_codec(name) == name
    with pytest.raises(InvalidArgumentError, match="no parameter 'bits'"):
        _core.check_codec(resolve(f"{ABSMAX}(bits=2)"))


def test_without_a_compiler_the_remedy_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    fresh = {**environ, "CASYNC_CACHE_DIR": str(tmp_path), "PATH": str(tmp_path)}
    with pytest.raises(NotAvailableError, match=r"apt-get install g\+\+"):
        compile_file(ABSMAX, TEXT, fresh)
    with pytest.raises(NotAvailableError, match="CXX=none-such is not there"):
        compile_file(ABSMAX, TEXT, {**fresh, "CXX": "none-such"})


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho it is raining >&2\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    cache = tmp_path / "cache"
    with pytest.raises(CasyncError, match="it is raining"):
        compile_file(ABSMAX, TEXT, {**environ, "CXX": str(compiler), "CASYNC_CACHE_DIR": str(cache)})
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 0", "absmax.cll.*ended well and wrote nothing"), ("kill -9 $$", "absmax.cll.*status -9")],
)
def test_a_compiler_that_makes_nothing(environ: dict[str, str], tmp_path: Path, script: str, said: str) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.raises(CasyncError, match=said):
        compile_file(ABSMAX, TEXT, {**environ, "CXX": str(compiler), "CASYNC_CACHE_DIR": str(tmp_path / "cache")})


def test_a_compiler_that_takes_too_long_is_ended_with_all_it_began(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_COMPILE_SECONDS", 1)
    compiler, child = tmp_path / "compiler", tmp_path / "child"
    compiler.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {child}\nwait\n", encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.raises(CasyncError, match="took more than 1 s"):
        compile_file(ABSMAX, TEXT, {**environ, "CXX": str(compiler), "CASYNC_CACHE_DIR": str(tmp_path / "cache")})
    status = Path(f"/proc/{child.read_text(encoding='utf-8').strip()}/stat")
    assert not status.exists() or status.read_text(encoding="utf-8").split()[2] == "Z"


def test_what_is_no_compiler(environ: dict[str, str], tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(b"\0\1\2")
    noise.chmod(0o755)
    fresh = {**environ, "CASYNC_CACHE_DIR": str(tmp_path / "cache")}
    for compiler, said in (("it's", "CXX=.*No closing quotation"), (str(noise), "Exec format error")):
        with pytest.raises(CasyncError, match=said):
            compile_file(ABSMAX, TEXT, {**fresh, "CXX": compiler})


def test_a_cache_that_cannot_be_written_names_the_setting(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("/proc/nowhere", str(tmp_path / "file")):
        with pytest.raises(NotAvailableError, match=rf"absmax\.cll cannot be .* {folder}: .*CASYNC_CACHE_DIR="):
            compile_file(ABSMAX, TEXT, {**environ, "CASYNC_CACHE_DIR": folder})


def test_what_is_in_the_cache_needs_no_right_to_write(environ: dict[str, str]) -> None:
    made = compile_file(ABSMAX, TEXT, environ)
    lock = made.with_name(f"{made.name}.lock")
    lock.unlink()
    lock.mkdir()  # whoever opens it fails, root too
    try:
        assert compile_file(ABSMAX, TEXT, environ) == made
    finally:
        lock.rmdir()


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"nowhere\.cll cannot be read"):
        resolve("nowhere.cll(bits=2)")


def test_a_file_that_means_nothing_shows_the_place(tmp_path: Path) -> None:
    file = tmp_path / "wrong.cll"
    file.write_text(TEXT.replace("maxAbs", "maxAbsolute"), encoding="utf-8")
    with pytest.raises(CompllError, match=r"wrong\.cll:\d+:\d+: ") as caught:
        resolve(str(file))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.finding, again.span) == (str(caught.value), caught.value.finding, caught.value.span)


@pytest.mark.parametrize(("bound", "size"), [("-1 * size", 100), ("4 + 8 * size", 300_000_000)])
def test_a_bound_below_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], tmp_path: Path, bound: str, size: int
) -> None:
    """The last unit's once took from what the others need, and an int32 does not hold the second one."""
    from casync import _core

    monkeypatch.setenv("CASYNC_CACHE_DIR", environ["CASYNC_CACHE_DIR"])
    file = tmp_path / "below.cll"
    file.write_text(SPARSE.replace("BOUND", bound), encoding="utf-8")
    codec = _core.Codec(resolve(str(file)))
    with pytest.raises(InvalidArgumentError, match=r"below@\w+: `bound` is -\d+ bytes for a unit of \d+ elements"):
        codec.bound((1, size), FLOAT32, (0, size), 0)


def test_what_no_code_can_be_generated_for_is_refused_by_name(tmp_path: Path) -> None:
    text = re.sub(r"\bint8\b", "int4", library_files()["thc"].read_text(encoding="utf-8"))
    (tmp_path / "thin.cll").write_text(text, encoding="utf-8")
    with pytest.raises(NotAvailableError, match="no code can be generated for the type int4 in a payload"):
        resolve(str(tmp_path / "thin.cll"))


def test_a_stranger_is_no_codec(tmp_path: Path) -> None:
    from casync import _core

    with pytest.raises(InvalidArgumentError, match="cannot be loaded"):
        _core.load_codec(str(tmp_path / "none.so"))
    with pytest.raises(InvalidArgumentError, match="is no codec compiled for this version"):
        _core.load_codec("libm.so.6")
