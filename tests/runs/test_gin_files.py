import re
from pathlib import Path

import gin
import pytest

from specdec.models.partitioning import T5X_RULES, DeviceMesh
from specdec.runs import gin_files
from specdec.runs.decode_run import DecodeRun
from specdec.runs.gin_bindings import configured

ROOT = Path(__file__).resolve().parents[2]
TRAINING = sorted((ROOT / "configs" / "training").glob("*.gin"))
EXPERIMENTS = sorted((ROOT / "configs" / "experiments").rglob("*.gin"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shipped_experiments_set_and_use_every_macro(path):
    given = ["AUDIO = 'audio'"] if path.parent.name == "speech" else []  # As --audio gives it.
    gin_files.parse([str(path)], given, ROOT)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shipped_experiments_say_command_duration_and_expectation(path):
    head = path.read_text().split("include")[0]
    assert f"--gin_file={path.relative_to(ROOT)}" in head
    assert "Duration:" in head
    assert "Expect:" in head


@pytest.mark.parametrize(
    "folder",
    ["targets", "drafters", "hardware", "meshes", "methods", "sampling", "tasks", "trees",
     "verifiers"],
)  # fmt: skip
def test_every_part_goes_with_the_quickstart(folder):
    for path in sorted((ROOT / "configs" / folder).glob("*.gin")):
        quickstart = str(ROOT / "configs/experiments/quickstart_ende.gin")
        gin_files.parse([quickstart, str(path)], [], ROOT)


def test_the_meshes_rules_are_those_that_load_pair_takes():
    quickstart = str(ROOT / "configs/experiments/quickstart_ende.gin")
    gin_files.parse([quickstart, str(ROOT / "configs/meshes/2x4.gin")], ["TASK = None"], ROOT)
    assert configured(DecodeRun).mesh == DeviceMesh(data=2, model=4)
    bindings = ["TASK = None", "DRAFT_RULES = %TARGET_RULES"]
    gin_files.parse([quickstart, str(ROOT / "configs/meshes/1x8.gin")], bindings, ROOT)
    assert configured(DecodeRun).mesh == DeviceMesh(1, 8, draft_rules=T5X_RULES)


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_shipped_recipes_need_what_their_command_gives_and_nothing_else(path):
    names = re.findall(r"--gin\.([A-Z_]+)=", path.read_text().split("from __gin__")[0])
    assert names
    given = {name: f"{name} = 'x'" for name in names}
    gin_files.parse([str(path)], list(given.values()), ROOT)
    for name in names:
        others = [binding for other, binding in given.items() if other != name]
        with pytest.raises(ValueError, match=f"{name}.* must be set"):
            gin_files.parse([str(path)], others, ROOT)


def parse(tmp_path, text, *bindings):
    path = tmp_path / "run.gin"
    path.write_text(text)
    gin_files.parse([str(path)], bindings, ROOT)


@pytest.mark.parametrize(
    ("text", "bindings", "message"),
    [
        ("GAMA = 1\nSamplingConfig.top_k = 2", (), "Unknown macro GAMA"),
        ("A = 1\nSamplingConfig.top_k = %A", ("GAMA=3",), "Unknown macro GAMA"),
        ("a/B = 3\nB = 4\nSamplingConfig.top_k = %B", (), "Unknown macro a/B"),
        ("GAMMA = 2\nSamplingConfig.top_k = (%GAMMA, %GAMA)", (), r"GAMA is used but.*GAMMA\?"),
        ("GAMMA = %gin.REQUIRED\nSamplingConfig.top_k = %GAMMA", (), "GAMMA must be set"),
        ("A = 3\nB = = 4", (), r"run\.gin:2"),
        ("A = 3\nSamplingConfig.top_k = %A", ("A=checkpoints/target",), "needs quotes"),
        # T5X's import its modules, which need not be installed.
        ("import no_such_system.network", (), r"imports what is not there: .*another system\?"),
    ],
)
def test_what_is_wrong_with_a_configuration(tmp_path, text, bindings, message):
    with pytest.raises(ValueError, match=message):
        parse(tmp_path, text, *bindings)


def test_a_macro_may_use_another(tmp_path):
    parse(tmp_path, "A = 3\nB = %A\nSamplingConfig.top_k = %B")
    assert gin.query_parameter("A/gin.macro.value") == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"decode.gamma = \xff\n", "is not UTF-8"),
        (b"decode.gamma = " + b"(" * 200_000, "is nested too deep"),
        (b"decode.gamma = " + b"[" * 2000 + b"]" * 2000, "is nested too deep"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "run.gin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"run\.gin, or a file that is included, {message}") as e:
        gin_files.parse([str(path)], [], ROOT)
    assert "\n" not in str(e.value)
