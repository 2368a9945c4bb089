#!/usr/bin/env bash
# sanitize.sh address,undefined | thread: builds the C++ tests with these sanitizers and runs them.
# What Open MPI itself does is listed in tools/sanitize/*.supp, and nothing of ours is.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
name=${kind%%,*}
build=$PWD/build/$name
lists=$PWD/tools/sanitize

echo "== C++ tests under -fsanitize=$kind"
cmake -S . -B "$build" -GNinja --log-level=WARNING -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCASYNC_SANITIZE="$kind" \
  -DCASYNC_WITH_TESTS=ON -DCASYNC_WITH_PYTHON=OFF -DCASYNC_WITH_MPI="${CASYNC_WITH_MPI:-ON}" \
  -DPython_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
cmake --build "$build"
# A small quarantine: tests that hold memory to a bound count freed memory as gone.
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:quarantine_size_mb=16
export LSAN_OPTIONS=suppressions=$lists/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=suppressions=$lists/tsan.supp:halt_on_error=0:second_deadlock_stack=1
# Of Open MPI, what cannot live with ThreadSanitizer: a segment at a fixed address, which is not free under it, and UCX's
# patch of mmap and madvise, which runs in threads that it has already taken down.
export PMIX_MCA_gds=hash UCX_MEM_MMAP_HOOK_MODE=none
ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)"
