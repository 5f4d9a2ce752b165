#!/bin/sh
# usage: oracle_env.sh VENV
# The real Megatron Core in an environment of its own: its validators are the oracle for our rules.
set -eu
venv=$1
stamp="$venv/.ready"
[ -f "$stamp" ] && [ "$stamp" -nt requirements-oracle.txt ] && exit 0
python=${PYTHON311:-python3.11}
command -v "$python" >/dev/null 2>&1 || { echo "Python 3.11 is missing: set PYTHON311 to it" >&2; exit 3; }
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements-oracle.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check pytest hypothesis click rich hatchling editables
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e packages/recompute
touch "$stamp"
