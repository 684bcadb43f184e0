# Sourced by demo.sh and test.sh: a virtual environment with specdec's pinned dependencies.

repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# Prints a Python 3.11 or newer: $PYTHON if set, else the first that works.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  if [ -n "${PYTHON:-}" ]; then
    echo "PYTHON=$PYTHON is not a Python 3.11 or newer." >&2
  else
    echo "specdec needs Python 3.11 or newer, and none was found." >&2
    echo "Install one, or name it: PYTHON=/path/to/python3.11 bash $0" >&2
  fi
  return 1
}

# make_venv DIRECTORY REQUIREMENT...: makes it if need be and installs; sets $venv_python.
# A stamp, written last, lets the next run skip the installation while nothing has changed.
make_venv() {
  local directory="$1" stamp="$1/.specdec-installed" wanted python
  shift
  venv_python="$directory/bin/python"
  if [ ! -x "$venv_python" ]; then
    python="$(find_python)"
    echo "Making $directory with $("$python" --version)"
    "$python" -m venv "$directory" || {
      echo "Could not make a virtual environment (on Debian and Ubuntu: install python3-venv)." >&2
      return 1
    }
  fi
  "$venv_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$directory has an older Python than 3.11; remove it and run this again." >&2
    return 1
  }
  wanted="$repo $* $(cat "$repo/setup.py" "$repo/constraints.txt" | cksum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  "$venv_python" -m pip --version >/dev/null 2>&1 || "$venv_python" -m ensurepip --upgrade
  echo "Installing into $directory (once; a few minutes on a slow connection)"
  "$venv_python" -m pip install --quiet --disable-pip-version-check -c "$repo/constraints.txt" uv
  # uv installs in a fraction of pip's time, but does not read pip's settings: hand these on, with
  # pip's way of choosing the newest version of all indexes.
  (
    export UV_INDEX_STRATEGY=unsafe-best-match
    [ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"
    [ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_INDEX="${UV_INDEX:-$PIP_EXTRA_INDEX_URL}"
    [ -z "${PIP_FIND_LINKS:-}" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$PIP_FIND_LINKS}"
    "$directory/bin/uv" pip install --quiet --python "$venv_python" \
      -c "$repo/constraints.txt" "$@"
  )
  echo "$wanted" >"$stamp"
}
