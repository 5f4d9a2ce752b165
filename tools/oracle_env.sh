#!/bin/sh
# usage: oracle_env.sh VENV
# The real Megatron Core in an environment of its own: its validators are the oracle for our rules.
set -eu
venv=$1
stamp="$venv/.ready"

# NeMo-Run in a folder of its own, for the launcher that goes through it. It imports leptonai.api.v1, which
# leptonai 0.47 no longer has. Where it cannot be had, its tests are skipped with a reason.
nemo_run() {
  [ -f "$venv/.nemo-run-ready" ] && return 0
  rm -rf "$venv/nemo-run"
  if "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$venv/nemo-run" \
    nemo-run==0.11.1 "leptonai<0.47" 2>"$venv/nemo-run.log"; then
    touch "$venv/.nemo-run-ready"
  else
    rm -rf "$venv/nemo-run"
    tail -n 3 "$venv/nemo-run.log" >&2
    echo "oracle_env: NeMo-Run could not be installed, so that its tests are skipped" >&2
  fi
}

if [ -f "$stamp" ] && [ "$stamp" -nt requirements-oracle.txt ]; then
  nemo_run
  exit 0
fi
python=${PYTHON311:-python3.11}
command -v "$python" >/dev/null 2>&1 || { echo "Python 3.11 is missing: set PYTHON311 to it" >&2; exit 3; }
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements-oracle.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check pytest hypothesis click rich hatchling editables
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e packages/recompute
# 0.19.2 is published for Python 3.12 only; its validators are plain Python and run on 3.11. It lies in a
# folder of its own, with triton, which it imports, and is put first on the path for its own run.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$venv/mcore-0.19" \
  --only-binary=:all: --ignore-requires-python --python-version 3.12 megatron-core==0.19.2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$venv/mcore-0.19" triton==3.7.1
touch "$stamp"
nemo_run
