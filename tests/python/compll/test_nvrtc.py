"""Device code and NVRTC: all codecs compile, what was compiled is kept, and errors say what to do."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from casync.compll.check import check_program
from casync.compll.cuda import nvrtc
from casync.compll.cuda.emit import emit
from casync.compll.cuda.nvrtc import Nvrtc, cubin_of, find_nvrtc
from casync.compll.cuda.texts import COMMON, text_of
from casync.compll.headers import device_headers
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.errors import DeviceError, NotAvailableError
from support.files import ROOT

UNITS = {path.stem: path for path in sorted((ROOT / "tests" / "compll" / "units").glob("*.cll"))}
ELF = b"\x7fELF"
KERNEL = """#include <cstdint>
extern "C" __global__ void kernel(std::int32_t* to) { *to = NUMBER; }
"""


def device_code(path: Path) -> str:
    return emit(check_program(parse(path.read_text(encoding="utf-8"), path.name)), path.stem)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])  # the oldest and the newest are among them
def test_all_codecs_compile_without_a_word(architecture: str) -> None:
    headers = device_headers() | nvrtc._STANDARD

    def compiled(path: Path) -> bytes:
        return find_nvrtc().compile(device_code(path), architecture, headers)

    common = find_nvrtc().compile(text_of(COMMON), architecture, headers)
    assert all(name in common for name in (b"casync_merge_bfloat16", b"casync_report_encoded", b"casync_copy"))
    files = library_files() | (UNITS if architecture == "sm_90" else {})  # all of them would take minutes
    assert len(files) > (40 if architecture == "sm_90" else 7)
    with ThreadPoolExecutor(2) as pool:
        for path, cubin in zip(files.values(), pool.map(compiled, files.values()), strict=True):
            assert cubin.startswith(ELF), path
            assert f"{path.stem}_unit".encode() in cubin, "the kernels keep their names"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"CASYNC_CACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures that were compiled for, instead of found in the cache."""
    seen: list[str] = []
    compile_ = Nvrtc.compile

    def counted(self: Nvrtc, text: str, architecture: str, headers: dict[str, str]) -> bytes:
        seen.append(architecture)
        return compile_(self, text, architecture, headers)

    monkeypatch.setattr(Nvrtc, "compile", counted)
    return seen


def test_what_was_compiled_is_kept(environ: dict[str, str], compiled: list[str]) -> None:
    first = cubin_of(KERNEL.replace("NUMBER", "1"), "sm_90", environ)
    assert first.startswith(ELF) and b"kernel" in first
    assert cubin_of(KERNEL.replace("NUMBER", "1"), "sm_90", environ) == first
    assert compiled == ["sm_90"]
    assert {path.suffix for path in Path(environ["CASYNC_CACHE_DIR"]).iterdir()} == {".cubin", ".lock"}


def test_another_text_architecture_header_or_release_is_another_cubin(
    environ: dict[str, str], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (KERNEL.replace("NUMBER", number) for number in "12")
    cubins = {cubin_of(one, "sm_90", environ), cubin_of(two, "sm_90", environ), cubin_of(one, "sm_80", environ)}
    assert len(cubins) == 3
    monkeypatch.setitem(nvrtc._STANDARD, "cstdint", f"{nvrtc._STANDARD['cstdint']}// another\n")
    cubin_of(one, "sm_90", environ)
    monkeypatch.setattr(find_nvrtc(), "version", "99.9")
    cubin_of(one, "sm_90", environ)
    assert compiled == ["sm_90", "sm_90", "sm_80", "sm_90", "sm_90"]


@pytest.mark.parametrize("damage", [lambda content: content[:-100], lambda content: b"", lambda content: b"x" * 5000])
def test_a_damaged_file_is_made_again(environ: dict[str, str], compiled: list[str], damage) -> None:
    text = KERNEL.replace("NUMBER", "1")
    cubin = cubin_of(text, "sm_90", environ)
    (file,) = Path(environ["CASYNC_CACHE_DIR"]).glob("*.cubin")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert cubin_of(text, "sm_90", environ) == cubin and file.read_bytes() == whole
    assert compiled == ["sm_90", "sm_90"]


def _compile_in_a_process(folder: str, barrier, results) -> None:
    nvrtc_, text = find_nvrtc(), device_code(library_files()["onebit"])
    with mock.patch.object(nvrtc_, "compile", wraps=nvrtc_.compile) as compile_:
        barrier.wait()
        cubin = cubin_of(text, "sm_90", {"CASYNC_CACHE_DIR": folder})
    results.put((compile_.call_count, cubin))


def test_of_two_processes_at_once_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])  # by which a process finds this file
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_compile_in_a_process, args=(str(tmp_path), barrier, results)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=50) for _ in processes]
    for process in processes:
        process.join(timeout=10)
    assert sorted(calls for calls, _ in found) == [0, 1]
    assert found[0][1] == found[1][1] and found[0][1].startswith(ELF)


def test_a_text_that_means_nothing_quotes_the_log(environ: dict[str, str]) -> None:
    with pytest.raises(DeviceError, match=r'(?s)NVRTC \d+\.\d+ .* sm_90.*identifier "nonsense" is undefined') as caught:
        cubin_of(KERNEL.replace("NUMBER", "nonsense"), "sm_90", environ)
    assert "codec.cu(2)" in str(caught.value)
    assert not list(Path(environ["CASYNC_CACHE_DIR"]).glob("*.cubin"))


def test_an_architecture_that_is_unknown_is_refused_with_those_that_are_not(environ: dict[str, str]) -> None:
    with pytest.raises(NotAvailableError, match=r"does not know sm_35, only .*sm_90.*pip install nvidia-cuda-nvrtc"):
        cubin_of(KERNEL.replace("NUMBER", "1"), "sm_35", environ)


@pytest.fixture
def fresh() -> Iterator[None]:
    """What was found before is looked for again, now and after the test."""
    find_nvrtc.cache_clear()
    yield
    find_nvrtc.cache_clear()


def test_without_nvrtc_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["libnone.so", "/nowhere/libnvrtc.so.13"]))
    with pytest.raises(NotAvailableError, match=r"it is not there: pip install nvidia-cuda-nvrtc"):
        find_nvrtc()


def test_one_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    path = find_nvrtc().path
    find_nvrtc.cache_clear()
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter([path]))
    monkeypatch.setattr(nvrtc, "_OLDEST", (99, 0))
    with pytest.raises(NotAvailableError, match=r"libnvrtc\S* is \d+\.\d+, older than 99\.0"):
        find_nvrtc()


def test_the_newest_of_the_packages_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13", "cu13/lib/libnvrtc-builtins.so.13.0"):
        (tmp_path / "nvidia" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / name).touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    importlib.invalidate_caches()
    found = [path for path in nvrtc._candidates() if path.startswith(str(tmp_path))]
    assert [Path(path).name for path in found] == ["libnvrtc.so.13", "libnvrtc.so.12"]
