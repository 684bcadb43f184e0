import importlib.util
import json
from pathlib import Path

import pytest

from specdec.reproduction import scaling_tables

REPO = Path(__file__).parent.parent.parent


def load_script():
    spec = importlib.util.spec_from_file_location("page", REPO / "scripts/scaling_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def committed():
    return json.loads((REPO / "results/scaling/summary.json").read_text())


def test_the_page_shows_what_is_computed(monkeypatch):
    """Both the committed numbers and the page's tables, from shapes and figures anew."""
    monkeypatch.setattr("sys.argv", ["page", "--check"])
    assert load_script().main() == 0


def test_a_page_is_rewritten_between_its_markers(committed, tmp_path, monkeypatch):
    script = load_script()
    monkeypatch.setattr(script, "compute", lambda: committed)
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(script, "SUMMARY", tmp_path / "new" / "summary.json")
    script.PAGE.write_text("Head.\n\n<!-- hardware -->\n<!-- /hardware -->\n\nTail.\n")
    monkeypatch.setattr("sys.argv", ["page"])
    assert script.main() == 0
    text = script.PAGE.read_text()
    assert text.startswith("Head.\n\n<!-- hardware -->\n|  | memory, GB")
    assert text.endswith("<!-- /hardware -->\n\nTail.\n")
    assert json.loads(script.SUMMARY.read_text()) == committed
    monkeypatch.setattr("sys.argv", ["page", "--check"])
    assert script.main() == 0
    script.SUMMARY.write_text("{}")
    assert script.main() == 1


def test_figures_and_sizes_are_where_they_belong(committed):
    lines = scaling_tables.hardware(committed).splitlines()
    assert lines[2] == "| TPU v4 | 34.4 | 1,200 | 275.0 | 300 | 229 |"
    models = scaling_tables.models(committed).splitlines()
    assert models[2].startswith(
        "| T5-XXL | 24 + 24 | 4096 | 64 | 10240 | 22.27 | 11.13 | 393 | 74 |"
    )
    assert models[3].startswith("| T5 of 110 B | 60 + 60 | 8192 | 128 | 20480 |")
    assert len(scaling_tables.meshes(committed).splitlines()) == 2 + 2 * 3 * 2
