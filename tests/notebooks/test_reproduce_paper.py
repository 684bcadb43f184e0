from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra [notebooks]")
nbclient = pytest.importorskip("nbclient", reason="needs the extra [notebooks]")

REPO = Path(__file__).parent.parent.parent
NOTEBOOK = REPO / "notebooks" / "reproduce_paper.ipynb"
SMALL = "NUM_TEXTS = 2\nMAX_DECODE_LEN = 12\nFIGURE_GAMMAS = (3, 0)"


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
    for part in ("temperature 1  bigram of quickstart", "BlockVerifier", "best gamma"):
        assert part in printed
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == 6  # Figures 1 to 5, and tokens a call by gamma.
