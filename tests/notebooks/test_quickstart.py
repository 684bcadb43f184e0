from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra [notebooks]")
nbclient = pytest.importorskip("nbclient", reason="needs the extra [notebooks]")

REPO = Path(__file__).parent.parent.parent
NOTEBOOK = REPO / "notebooks" / "quickstart.ipynb"
SMALL = "GAMMA = 3\nMAX_DECODE_LEN = 16\nNUM_TEXTS = 2\nREPETITIONS = 1"


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_committed_without_outputs(notebook):
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_it_runs(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    assert len(parameters.source.splitlines()) == len(SMALL.splitlines())
    parameters.source = SMALL
    client = nbclient.NotebookClient(
        notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    printed = "".join(out.text for out in outputs if out.output_type == "stream")
    assert "of 2 texts are identical to plain decoding" in printed
    assert "lossless: all 2 rows equal to the width-matched reference" in printed
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    frames = [out for out in outputs if "iframe" in out.get("data", {}).get("text/html", "")]
    assert len(pictures) == 1
    assert len(frames) == 1
