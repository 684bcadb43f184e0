#!/usr/bin/env bash
# English to German, speculatively: makes .venv, installs specdec, runs the quickstart.
#
#   bash scripts/demo.sh [flags of scripts/decode.py, such as --text "How are you?"]
#   PYTHON=python3.12 bash scripts/demo.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

make_venv "$repo/.venv" --editable "$repo"
exec "$venv_python" "$repo/scripts/decode.py" \
  --gin_file="$repo/configs/experiments/quickstart_ende.gin" "$@"
