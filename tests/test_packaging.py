import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from said import said

import specdec

REPO = Path(__file__).parent.parent
BUNDLED = REPO / "specdec" / "bundled"
SCRIPTS = sorted((REPO / "scripts").glob("*.py"))


def run(*command, **options):
    env = os.environ | {"PYTHONPATH": str(REPO)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, env=env, **options
    )


def test_decoding_imports_little(tmp_path):
    heavy = (
        "tensorflow", "torch", "transformers", "seqio", "gin", "matplotlib",
        "flax", "optax", "orbax", "tensorstore", "jax.experimental.pallas", "rich", "yaml",
    )  # fmt: skip
    code = (
        "import specdec, sys; pair = specdec.load_pair('quickstart'); "
        "pair.generate(['The house is old.'], max_decode_len=8); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    result = run("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    # A copy of what packaging reads: a build leaves its own directories beside the source.
    parts = "setup.py pyproject.toml MANIFEST.in README.md LICENSE specdec configs"
    for name in parts.split():
        (source / name).symlink_to(REPO / name)
    out = tmp_path_factory.mktemp("wheel")
    code = (
        "import os, sys; os.chdir(sys.argv[1]); from setuptools import build_meta; "
        "print(build_meta.build_wheel(sys.argv[2]))"
    )
    result = run("-c", code, str(source), str(out))
    assert result.returncode == 0, result.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_code_and_nothing_else(wheel):
    names = set(wheel.namelist())
    metadata = f"specdec_jax-{specdec.__version__}.dist-info/"
    code = {p.relative_to(REPO).as_posix() for p in (REPO / "specdec").rglob("*.py")}
    assert code <= names
    assert all(name.startswith(("specdec/", metadata)) for name in names)


def test_the_wheel_holds_the_bundled_files(wheel):
    files = {p.relative_to(REPO).as_posix() for p in BUNDLED.rglob("*") if p.is_file()}
    assert files | {"specdec/py.typed"} <= set(wheel.namelist())


def test_the_wheel_holds_the_configurations_and_the_commands(wheel):
    files = {p.relative_to(REPO).as_posix() for p in (REPO / "configs").rglob("*.gin")}
    assert {f"specdec/{name}" for name in files} <= set(wheel.namelist())
    (entries,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    lines = wheel.read(entries).decode().splitlines()
    for script in {path.stem for path in SCRIPTS} - {"pages"}:
        room = script in ("benchmark", "reproduce")
        module = "reproduce.commands" if room else "runs.command_line"
        assert f"specdec-{script} = specdec.{module}:{script}" in lines


def test_an_installed_package_needs_no_checkout(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = (
        "import sys; from specdec.runs.command_line import decode; "
        "sys.argv = ['specdec-decode', *sys.argv[1:]]; decode()"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    config = "configs/experiments/quickstart_ende.gin"
    result = subprocess.run(
        [sys.executable, "-c", code, f"--gin_file={config}", "--dry_run"], cwd=tmp_path / "specdec",
        capture_output=True, text=True, env=env,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "parameters" in result.stdout


def test_one_version_everywhere(wheel):
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    text = wheel.read(metadata).decode()
    assert f"\nVersion: {specdec.__version__}\n" in text
    assert "\nRequires-Python: >=3.11\n" in text
    changelog = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(specdec.__version__)}\]", changelog, re.MULTILINE)


def test_every_requirement_is_pinned(wheel):
    def normal(name):
        return re.sub(r"[-_.]+", "-", name).lower()

    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    required = re.findall(r"^Requires-Dist: ([\w.-]+)", wheel.read(metadata).decode(), re.MULTILINE)
    lines = (REPO / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", pin) for pin in pins)
    assert {normal(name) for name in required} <= {normal(pin.split("==")[0]) for pin in pins}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_shows_help(script):
    result = run(str(script), "--help")
    assert result.returncode == 0
    assert not said(result.stderr)
    assert script.stem in result.stdout


@pytest.mark.parametrize("script", ["scripts/demo.sh", "scripts/test.sh", ".ci/run"])
def test_shell_scripts_parse(script):
    subprocess.run(["bash", "-n", str(REPO / script)], check=True)


def test_scripts_refuse_an_old_python(tmp_path):
    # A copy, so that no virtual environment is at hand; no Python is found under this name.
    (tmp_path / "scripts").mkdir()
    for name in ("demo.sh", "venv.sh"):
        (tmp_path / "scripts" / name).write_text((REPO / "scripts" / name).read_text())
    result = subprocess.run(
        ["bash", str(tmp_path / "scripts/demo.sh")],
        env={"PATH": "/usr/bin:/bin", "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.strip() == "PYTHON=no-such-python is not a Python 3.11 or newer."
    assert not (tmp_path / ".venv").exists()
