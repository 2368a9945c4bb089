"""Runs what takes too long for every change, one after the other, and ends like `tools/test_all.py`.

    python tools/nightly.py --build build/release [--only schedules] [--only torch-2.14.1]

Ten times as many schedules as `make test-rest`, all mutants, every test with every adaptor, also in a world of one, the
sanitizers, 15 minutes of fuzzing, 1,000 random faults, all tests of CompLL, the backend casync with older and newer
releases of torch, an installation by every other Python that is there, and the newest Lightning, Accelerate and
Transformers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from test_all import ALL_ADAPTORS, OTHERS, ROOT, TORCH, Job, Section, run_all, sections_of

TORCHES = ("2.4.1", "2.9.1", "2.14.1", "2.15.0")
"""Of each kind that the backend tells apart; CI has the one between."""
PYTHONS = ("python3.10", "python3.12", "python3.13")
EVERY_ADAPTOR = (
    Job("every", ".venv", "numpy,standin,torch", (ALL_ADAPTORS, TORCH), (1, 3)),
    Job("every-framework", "build/frameworks", "mxnet,tensorflow,tensorflow_graph", (ALL_ADAPTORS, OTHERS), (1, 3)),
    Job("every-jax", "build/jax", "jax", (ALL_ADAPTORS, OTHERS), (1, 2)),
)
"""With the tests of the core too, which elsewhere NumPy and torch run for all (tests/python/adaptor/conftest.py)."""
_BACKEND = ("test_backend.py", "test_places.py", "test_flight_recorder.py")
_FSDP_FROM = (2, 13)
LIBRARIES = [f"tests/python/programs/test_{name}.py" for name in ("accelerate", "lightning", "transformers")]
"""Their doors are those of the hook and the optimizer, which CI tries with the same programs."""


def sections(build: Path) -> list[Section]:
    schedules = build / "tests/cpp/executor/test_schedules"
    seeds = f"seq 10000 5000 95000 | xargs -P2 -I{{}} env CASYNC_SEEDS={{}}:5000 {schedules} --gtest_brief=1"
    make = ("make", "--no-print-directory")
    pytest = Path(sys.executable).with_name("pytest")
    found = [
        Section("schedules", "90,000 schedules", ("bash", "-c", seeds), False),
        Section(
            "mutants",
            "faults that the C++ tests must notice",
            ("ctest", "--test-dir", str(build), "-R", "mutant"),
            False,
        ),
        Section("sanitize", "C++ tests under sanitizers", (*make, "sanitize"), False),
        Section("fuzz", "15 minutes of made-up input", (*make, "fuzz", "SECONDS=900"), False),
        Section("faults", "1,000 random faults", (sys.executable, "tools/random_faults.py", "--jobs", "1000"), False),
        Section(
            "faults-rounds",
            "1,000 random faults in rounds of DiLoCo",
            (sys.executable, "tools/random_faults.py", "--jobs", "1000", "--rounds"),
            False,
        ),
        Section("codecs", "what CompLL generates", (sys.executable, "tools/passed.py", "compll"), False),
        Section(
            "programs",
            "programs through libraries",
            (str(pytest), "-q", *LIBRARIES, "--junitxml=build/results/programs.xml"),
            False,
        ),
        Section("newest", "the newest Lightning, Accelerate and Transformers", (*make, "test-newest"), False),
    ]
    found += sections_of(EVERY_ADAPTOR)
    for version in TORCHES:
        folder = f"build/torch-{version}"
        files = [f"tests/python/c10d/{name}" for name in _BACKEND]
        if tuple(map(int, version.split(".")[:2])) >= _FSDP_FROM:
            files.append("tests/python/c10d/test_fsdp.py")
        # Not the index that TORCH may name for the build of every day: each release is pip's own choice.
        steps = (
            f"{sys.executable} tools/overlay.py {folder}",
            f"{folder}/bin/python -m pip install --quiet --disable-pip-version-check torch=={version}",
            f"{folder}/bin/python {Path(sys.executable).with_name('pytest')} -q -ra {' '.join(files)}"
            f" --junitxml=build/results/torch-{version}.xml",
        )
        found.append(
            Section(f"torch-{version}", f"the backend with torch {version}", ("bash", "-ec", "\n".join(steps)), False)
        )
    for python in PYTHONS:
        if shutil.which(python):
            found.append(Section(python, f"installed by {python}", (python, "tools/check_install.py"), False))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="CMake's build folder")
    parser.add_argument("--only", action="append", metavar="SECTION", help="schedules, sanitize, torch-2.14.1, ...")
    options = parser.parse_args()
    os.environ["CASYNC_TEST_EVERYTHING"] = "1"
    return run_all(sections(options.build), options.only, parser)


if __name__ == "__main__":
    sys.exit(main())
