#!/usr/bin/env bash
# Lint, types, layers, tests: makes .venv-test, installs what they need, runs them all.
#
#   bash scripts/test.sh [arguments of pytest, such as tests/core -k residual]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

make_venv "$repo/.venv-test" --editable "$repo[test,notebooks,bench]"
cd "$repo"
export PATH="$repo/.venv-test/bin:$PATH"
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1 # No request for the newest version's number.
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"

failed=""
check() {
  echo "== $*"
  "$@" || failed="$failed
  $*"
}
check ruff check .
check ruff format --check .
check pyright
check lint-imports
if [ -n "$failed" ]; then
  echo "== failed so far:$failed" >&2
fi

echo "== pytest"
# Modules side by side: most of a test is compilation, which keeps one core busy.
python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile "$@" || exit $?
if [ -n "$failed" ]; then
  echo "The tests passed; these checks did not:$failed" >&2
  exit 1
fi
