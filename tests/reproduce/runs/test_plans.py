"""Every reproduction plans its runs without models."""

import re
from pathlib import Path

import pytest

from specdec.reproduce.paper import TABLE_4
from specdec.reproduce.runs.reproduce import main
from specdec.runs.command_line import Given

ROOT = Path(__file__).resolve().parents[3]
REPRODUCTIONS = sorted((ROOT / "configs" / "reproduce").glob("*.gin"))
# Stand-ins for models that the project trains but does not ship.
STAND_INS = {
    "small": [
        *(f"BEFORE_{name}='quickstart'" for name in ("TARGET", "DRAFT")),
        *(f"ENGLISH_{name}='quickstart'" for name in ("TARGET", "DRAFT", "SMALL")),
        "ENGLISH_HEADS='quickstart/eagle'",
    ],
    "dialog": [f"DIALOG_{name}='quickstart_lm'" for name in ("TARGET", "SMALL", "BASE", "LARGE")],
}


@pytest.mark.parametrize("path", REPRODUCTIONS, ids=lambda path: path.stem)
def test_every_reproduction(path, tmp_path, capsys):
    bindings = STAND_INS.get(path.stem, [])
    given = Given([str(path)], bindings, str(tmp_path / "new"), "test")
    code = main(given, ROOT, dry_run=True)
    output = capsys.readouterr()
    assert code == 0, output.err
    found = re.findall(r"^([\w, ]+): .*gamma (\d), temperature (\d),", output.out, re.MULTILINE)
    of_the_paper = "Study" in path.read_text()  # Other tables have no run to plan.
    assert len(found) >= 3 if of_the_paper else found == []
    if path.stem == "t5_xxl":
        assert sorted((task, int(gamma), float(t)) for task, gamma, t in found) == sorted(
            (row.task, row.gamma, float(row.temperature)) for row in TABLE_4
        )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["t5_xxl", "t5_1_0", "flan"])
def test_the_experiments_are_the_papers_twelve_rows(family):
    """By their names, and with the paper's numbers in their heads."""
    files = (ROOT / "configs/experiments" / family).iterdir()
    heads = {path.stem: path.read_text() for path in files}
    assert len(heads) == len(TABLE_4)
    for row in TABLE_4:
        size = row.draft.removeprefix("T5-")
        setting = f"{size}_g{row.gamma}_t{row.temperature:g}"
        (head,) = (
            text
            for name, text in heads.items()
            if name.startswith(row.task.lower()) and name.endswith(setting)
        )
        printed = f"alpha {row.alpha:.2f}, {row.empirical} times faster, {row.expected} by Theorem"
        assert printed in " ".join(head.replace("# ", "").split())
