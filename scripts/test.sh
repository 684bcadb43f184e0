#!/usr/bin/env bash
# Lint, types, layers, tests: makes .venv-test, installs what they need, runs them all.
#
#   bash scripts/test.sh [arguments of pytest, such as tests/core -k residual]
#   bash scripts/test.sh --core       # the tests that prove decoding lossless, and no others
#   bash scripts/test.sh --reproduce  # the tests of specdec/reproduce, and no others
#   bash scripts/test.sh -m slow tests # those that a plain run leaves out
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

cd "$repo"
# By purpose: what proves decoding lossless, what is about programs themselves, and the rest.
core=(
  tests/test_oracle*.py tests/rules/test_rules_oracle.py tests/rules/test_timestamps.py tests/verifiers tests/core tests/drafters
  tests/decoding/test_loops.py tests/decoding/test_sizes.py tests/decoding/test_chi_square.py
  tests/models/test_contract.py
)
programs=(
  tests/models/test_few_tokens.py tests/decoding/test_exact.py
  tests/decoding/test_program_text.py tests/test_bundled_pair.py tests/test_real_weights.py
)
# What is about programs is compiled as it is for users. All other tests are mostly compilation,
# which takes a third of the time without optimization.
quickly="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
quickly="$quickly --xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0"

make_venv "$repo/.venv-test" --editable "$repo[test,notebooks,bench]"
export PATH="$repo/.venv-test/bin:$PATH"
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1 # No request for the newest version's number.
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"

check() {
  echo "== $*"
  "$@" || echo "$*" >>"$checked/failed"
}
# Beside pytest, which leaves a core idle now and then; shown after it.
checked="$(mktemp -d)"
trap 'rm -rf "$checked"' EXIT
{
  check ruff check .
  check ruff format --check .
  check lint-imports
  check pyright
} >"$checked/log" 2>&1 &

tests=0
run() {
  echo "== pytest"
  # Most of a test is compilation, which keeps a core busy; who has no tests left steals some.
  python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal "$@" || tests=$?
}
run_quickly() {
  XLA_FLAGS="${XLA_FLAGS:-} $quickly" run "$@"
}
if [ "${1:-}" = --core ]; then
  run_quickly "${core[@]}" "${@:2}"
elif [ "${1:-}" = --reproduce ]; then
  run_quickly tests/reproduce "${@:2}"
elif [ $# -gt 0 ]; then
  run "$@"
else
  run "${programs[@]}"
  run_quickly "${programs[@]/#/--ignore=}" tests
fi
wait
cat "$checked/log"
if [ -f "$checked/failed" ]; then
  echo "== These checks failed:" >&2
  cat "$checked/failed" >&2
fi
if [ "$tests" != 0 ]; then
  echo "== Tests failed: pytest ended with $tests, see above." >&2
  exit "$tests"
fi
[ ! -f "$checked/failed" ]
