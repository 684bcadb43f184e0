"""Each notebook runs from top to bottom, with the parameters of its first cells made small."""

import ast
import dataclasses
import importlib
import importlib.util
from pathlib import Path

import pytest

import specdec

nbformat = pytest.importorskip("nbformat", reason="needs the extra [notebooks]")
nbclient = pytest.importorskip("nbclient", reason="needs the extra [notebooks]")
inputs = pytest.importorskip("IPython.core.inputtransformer2", reason="needs [notebooks]")

REPO = Path(__file__).parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Notebook:
    """A notebook, its small parameters, and what its outputs show."""

    name: str
    parameters: str
    printed: tuple[str, ...]
    pictures: int
    frames: int = 0


NOTEBOOKS = [
    Notebook(
        "quickstart",
        "GAMMA = 3\nMAX_DECODE_LEN = 16\nNUM_TEXTS = 2\nREPETITIONS = 1",
        (
            "of 2 texts are identical to plain decoding",
            "lossless: all 2 rows equal to the width-matched reference",
        ),
        pictures=1,
        frames=1,
    ),
    Notebook(
        "reproduce_paper",
        "NUM_TEXTS = 2\nMAX_DECODE_LEN = 12\nFIGURE_GAMMAS = (3, 0)",
        ("temperature 1  bigram of quickstart", "BlockVerifier", "best gamma", "g started early"),
        pictures=6,  # Figures 1 to 5, and tokens a call by gamma.
    ),
]


@pytest.fixture(params=NOTEBOOKS, ids=lambda notebook: notebook.name)
def expected(request):
    return request.param


@pytest.fixture
def notebook(expected):
    return nbformat.read(REPO / "notebooks" / f"{expected.name}.ipynb", as_version=4)


def test_all_notebooks_are_tested():
    found = {path.stem for path in (REPO / "notebooks").glob("*.ipynb")}
    assert found == {notebook.name for notebook in NOTEBOOKS}


def test_it_is_committed_without_outputs(notebook):
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_it_uses_what_there_is(notebook):
    """Each cell parses, and what it takes from specdec exists; whether it runs takes minutes."""
    used = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        source = inputs.TransformerManager().transform_cell(cell.source)  # Without "!" and "%".
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "specdec":
                module = importlib.import_module(node.module)
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "specdec":
                module, names = specdec, [node.attr]
            else:
                continue
            for name in names:
                assert hasattr(module, name) or importlib.util.find_spec(
                    f"{module.__name__}.{name}"
                )
                used += 1
    assert used > 3


@pytest.mark.slow
def test_it_runs(notebook, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    assert len(parameters.source.splitlines()) == len(expected.parameters.splitlines())
    parameters.source = expected.parameters
    client = nbclient.NotebookClient(
        notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    printed = "".join(out.text for out in outputs if out.output_type == "stream")
    for part in expected.printed:
        assert part in printed
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]
    frames = [out for out in outputs if "iframe" in out.get("data", {}).get("text/html", "")]
    assert (len(pictures), len(frames)) == (expected.pictures, expected.frames)
