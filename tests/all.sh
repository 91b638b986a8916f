#!/bin/sh
# Every check of the project, from nothing: sets up .venv (and .venv-routers for the real routers), then
# formatting, types, import contracts and all tests. Needs Python 3.11 or newer with venv.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'

# The published routers live in a venv of their own; without them the tests marked real_router are skipped.
[ -x .venv-routers/bin/python ] || "$python" -m venv .venv-routers
.venv-routers/bin/python -m pip install --quiet --disable-pip-version-check \
    sglang-router==0.3.2 smg==1.13.0 || echo "the real routers could not be installed: their tests are skipped" >&2

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy pdtop tests benchmarks screenshots
.venv/bin/lint-imports
exec .venv/bin/python -m pytest --numprocesses 2 --dist loadfile "$@"
