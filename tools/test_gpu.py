"""Runs the tests that need a CUDA device, the most important first; without a device it says so and leaves with 0.

Each part prints a line when it ends, so that a run that is cut off leaves what it had; all together end in time for a
machine that is lent for ten minutes. Where CASYNC_CUDA_DRIVER names the stand-in for the driver, the parts run on it as
far as they can.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from cuda_device import DRIVER, missing
from test_all import RESULTS, ROOT, count

SECONDS = 540.0


@dataclass(frozen=True)
class Part:
    name: str  # of its files in build/results
    title: str
    command: tuple[str, ...]


def parts(framework: str) -> list[Part]:
    # -I: the checkout, where casync/ has no compiled modules, does not come before what is installed.
    pytest = (sys.executable, "-I", "-m", "pytest", "-v", "-ra", "-m", "gpu")
    ranks = ("casyncrun", "-np", "2", "--", sys.executable, "tools/mpi_pytest.py")
    first = ROOT / "tests/python/cuda/test_device.py"
    marked = (path for path in (ROOT / "tests/python").rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8"))
    others = sorted(str(path) for path in marked if path != first)
    workers = str(min(8, len(os.sched_getaffinity(0))))
    return [
        Part("gpu-first", "driver and copies", (*pytest, f"--junitxml={RESULTS / 'gpu-first.xml'}", str(first))),
        Part("gpu-2", f"operations at 2 ranks, {framework}", (*ranks, "gpu-2", "tests/python/adaptor")),
        Part("gpu", "all else marked gpu", (*pytest, f"--junitxml={RESULTS / 'gpu.xml'}", "-n", workers, *others)),
    ]


def run(part: Part, environ: dict[str, str], seconds: float) -> tuple[bool, str]:
    """Whether it is well, and a line for the summary."""
    print(f"\n=== {part.title}", flush=True)
    reports = [RESULTS / f"{part.name}.xml", *(RESULTS / f"{part.name}-rank{rank}.xml" for rank in range(2))]
    for report in reports:
        report.unlink(missing_ok=True)
    begin = time.monotonic()
    try:
        status = subprocess.run(part.command, cwd=ROOT, env=environ, timeout=max(seconds, 1)).returncode
        how = f", ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        how = ", ended because there was no time left"
    found = count([report for report in reports if report.exists()])
    counts = f"{found.passed} passed, {found.failed} failed, {found.skipped} skipped"
    line = f"{part.title}: {counts}{how}, {time.monotonic() - begin:.0f} s"
    print(f"=== {line}", flush=True)
    return not how, line


def main() -> int:
    deadline = time.monotonic() + SECONDS
    library = os.environ.get("CASYNC_CUDA_DRIVER", DRIVER)
    if why := missing(library):
        print(f"GPU tests skipped: {why}")
        return 0
    framework = "cuda" if library == DRIVER else "standin"
    environ = os.environ | {"CASYNC_TEST_FRAMEWORK": framework}
    RESULTS.mkdir(parents=True, exist_ok=True)
    ended = [run(part, environ, deadline - time.monotonic()) for part in parts(framework)]
    print("\n=== in short")
    for _, line in ended:
        print(line)
    return int(not all(well for well, _ in ended))


if __name__ == "__main__":
    sys.exit(main())
