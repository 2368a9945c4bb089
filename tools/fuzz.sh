#!/usr/bin/env bash
# fuzz.sh [SECONDS]: fuzzes each target of tests/fuzz for its part of SECONDS (900 if not given), from the inputs in
# tests/fuzz/corpus on. What reaches more code than those goes to build/fuzz/found. An input that fails is left in
# build/fuzz, the other targets still run, and the status is 1.
#
# fuzz.sh corpus: packs tests/fuzz/corpus anew: the fewest inputs, of those in it and those found, that reach as much.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$PWD/build/fuzz
export PATH=$PWD/.venv/bin:$PATH UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
declare -A longest=([codec]=500 [wire]=2000 [peer]=2000 [log]=4000 [compll_text]=4000 [strangers]=6000)  # bytes of an input
failed=()

# target NAME ARGUMENT...: the arguments are libFuzzer's.
target() {
  if [ -f "tests/fuzz/$1.py" ]; then
    PYTHONPATH=$PWD tests/fuzz/run_atheris.py "$1" -max_len="${longest[$1]}" "${@:2}"
  else
    "$build/tests/fuzz/fuzz_$1" -max_len="${longest[$1]}" "${@:2}"
  fi
}

fuzz() {
  echo "== $1: $2 s"
  local inputs=("$build/found/$1" "$build/kept/$1")
  [ "$1" != compll_text ] || inputs+=(casync/compll/library tests/compll)
  target "$1" -max_total_time="$2" -len_control=0 -entropic=0 -timeout=300 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$build/$1-" "${inputs[@]}" >"$build/$1.log" 2>&1 || {
    failed+=("$1")
    tail -n 60 "$build/$1.log"
  }
  grep -E '^stat::(number_of_executed_units|new_units_added)' "$build/$1.log" || true
}

# Reached are edges; how often each was passed would take ten times as many inputs.
pack() {
  local fewest=$build/fewest/$1
  rm -rf "$fewest"
  mkdir -p "$fewest"
  target "$1" -set_cover_merge=1 -use_counters=0 "$fewest" "$build/kept/$1" "$build/found/$1" >"$build/$1.log" 2>&1
  tar -C "$fewest" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -c . |
    gzip -n >"tests/fuzz/corpus/$1.tar.gz"
  echo "$1: $(find "$fewest" -type f | wc -l) inputs"
}

cmake -S . -B "$build" -GNinja --log-level=WARNING -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g" -DCASYNC_SANITIZE=address,undefined -DCASYNC_WITH_FUZZ=ON \
  -DCASYNC_WITH_PYTHON=OFF -DCASYNC_WITH_MPI=OFF -DPython_EXECUTABLE="$(command -v python)" >/dev/null
cmake --build "$build"
for name in codec wire peer log compll_text strangers; do
  mkdir -p "$build/found/$name" "$build/kept/$name"
  tar -C "$build/kept/$name" -xf "tests/fuzz/corpus/$name.tar.gz"
  if [ "${1:-}" = corpus ]; then
    pack "$name"
  else
    fuzz "$name" $((${1:-900} / ${#longest[@]}))
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
