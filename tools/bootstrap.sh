#!/bin/sh
# usage: bootstrap.sh VENV LOCK
# Creates VENV when it is missing, installs LOCK with hashes, then both packages in place.
set -eu
venv=$1
lock=$2
say() { printf '%s\n' "$*" >&2; }

find_python() {
  for candidate in "${PYTHON:-python3}" python3 python3.13 python3.12 python3.11; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

command -v git >/dev/null 2>&1 || { say "git is missing: install the Debian package 'git'"; exit 3; }
python=$(find_python) || { say "Python 3.11 or newer is missing: install the Debian package 'python3'"; exit 3; }
"$python" -c 'import venv, ensurepip' 2>/dev/null || {
  say "the venv module is missing: install the Debian package 'python3-venv'"; exit 3; }

[ -x "$venv/bin/python" ] || { say "creating $venv"; "$python" -m venv "$venv"; }
say "installing $lock (hashes are checked)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  -e packages/recompute -e packages/mdr
