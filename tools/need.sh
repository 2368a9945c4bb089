#!/usr/bin/env bash
# need.sh PACKAGE...: stops where files of these Debian packages are missing, with the one line that installs them.
# Root gets them installed. A package is missing when what it is for is missing, so another source of the same thing
# counts too.
set -euo pipefail
python=${PYTHON:-python3}

fuzzes() {
  clang++ -fsanitize=fuzzer,address,undefined -o /dev/null -x c++ - <<< 'extern "C" int LLVMFuzzerTestOneInput() { return 0; }'
}

present() {
  case $1 in
    g++) command -v c++ >/dev/null ;;
    libgtest-dev) [ -e /usr/include/gtest/gtest.h ] || [ -e /usr/local/include/gtest/gtest.h ] ;;
    clang) command -v clang++ >/dev/null ;;
    libclang-rt-dev) fuzzes 2>/dev/null ;;
    ccache) command -v ccache >/dev/null ;;
    iproute2) command -v ip >/dev/null && command -v tc >/dev/null ;;
    python*-venv) "$python" -c 'import ensurepip, venv' 2>/dev/null ;;
    python*-dev) "$python" -c 'import os, sysconfig as s; raise SystemExit(not os.path.exists(s.get_path("include") + "/Python.h"))' ;;
    *) echo "need.sh: no check for $1" >&2; exit 2 ;;
  esac
}

missing=()
for package in "$@"; do
  present "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "Missing: ${missing[*]}. Please install what these Debian packages hold, then run this again." >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "Debian packages are missing. Install them, then run this again:" >&2
  echo "    sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]} with apt-get"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
