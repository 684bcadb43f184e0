import importlib.util
import json
import re
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent.parent
README = REPO / "README.md"


def load_script():
    spec = importlib.util.spec_from_file_location("readme_table", REPO / "scripts/readme_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme_table = load_script()

RESULT = {
    "gamma": 4,
    "batch_size": 1,
    "dtype": "float32",
    "num_examples": 200,
    "num_tokens": 12345,
    "alpha": 0.8125,
    "acceptance_rate": 0.8,
    "draft_utilization": 0.7,
    "block_efficiency": 3.5,
    "cost_ratio": 0.05,
    "verify_ratio": 1.25,
    "ms_per_token": {"autoregressive": 4.0, "speculative": 2.0},
    "spread": {
        "measured_speedup": {"median": 2.0, "low": 1.9, "high": 2.1},
        "measured_speedup_decoder": {"median": 2.2, "low": 2.1, "high": 2.3},
    },
    "predicted_speedup": 2.3,
    "predicted_speedup_whole": 2.1,
    "predicted_speedup_thm38": 2.6,
    "greedy_mismatches": 1,
    "greedy_mismatches_width_matched": 0,
    "quality": {"bleu": 30.04, "chrf": 50.0},
    "device": "2 cores of a CPU",
}


def write(root, name, result):
    path = root / "results" / name / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))


def test_the_pages_show_the_committed_results():
    assert readme_table.main(["--check"]) == 0


def test_a_table_has_a_column_for_each_run(tmp_path):
    write(tmp_path, "quickstart_ende", RESULT)
    sampled = {"greedy_mismatches": None, "greedy_mismatches_width_matched": None}
    write(tmp_path, "ende_tatoeba_test_t1", RESULT | sampled | {"quality": None, "spread": None})
    write(tmp_path, "something_else", {})
    lines = readme_table.table(readme_table.read_results(tmp_path)).splitlines()
    assert lines[0] == "| | paragraphs, greedy | test split, temperature 1 |"
    assert "| tokens | 12,345 | 12,345 |" in lines
    assert "| α | 0.812 | 0.812 |" in lines
    assert "| **speedup, measured** (range) | **2.00×** (1.90 to 2.10) | – |" in lines
    assert "| texts that differ from plain decoding | 1 | – |" in lines
    assert "| BLEU | 30.0 | – |" in lines
    assert lines[-1] == (
        "From [quickstart_ende](results/quickstart_ende/results.json), "
        "[ende_tatoeba_test_t1](results/ende_tatoeba_test_t1/results.json). "
        "2 cores of a CPU, float32, batch size 1."
    )


def test_missing_results_say_how_to_make_them(tmp_path):
    with pytest.raises(readme_table.TableError, match=r"results\.json is missing; make it with"):
        readme_table.read_results(tmp_path)


def test_a_missing_key_is_named(tmp_path):
    write(tmp_path, "quickstart_ende", {k: v for k, v in RESULT.items() if k != "alpha"})
    with pytest.raises(readme_table.TableError, match=r"results\.json has no 'alpha'"):
        readme_table.table(readme_table.read_results(tmp_path))


def test_broken_json_is_named(tmp_path):
    write(tmp_path, "quickstart_ende", RESULT)
    (tmp_path / "results/quickstart_ende/results.json").write_text("{")
    with pytest.raises(readme_table.TableError, match="not valid JSON"):
        readme_table.read_results(tmp_path)


def test_another_directory_and_a_page_below_the_root(tmp_path):
    write(tmp_path / "results", "quickstart_ende", RESULT)
    source = "results/results/quickstart_ende/results.json"
    results = readme_table.read_results(tmp_path, "results/results")
    assert list(results) == [source]
    lines = readme_table.table(results, "../").splitlines()
    assert lines[0] == "| | paragraphs, greedy |"
    assert lines[-1].startswith(f"From [quickstart_ende](../{source}). ")


def test_only_what_is_between_the_markers_changes():
    old = "a\n<!-- these -->\nx\n<!-- /these -->\nb\n"
    assert readme_table.with_table(old, "these", "y") == old.replace("\nx\n", "\ny\n")
    with pytest.raises(readme_table.TableError, match="once each"):
        readme_table.with_table(old, "those", "y")


@pytest.mark.parametrize(
    "name", ["README.md", "docs/architecture.md", "docs/notation.md", "docs/performance.md"]
)
def test_relative_links_lead_somewhere(name):
    page = REPO / name
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    for target in targets:
        if "://" not in target:
            assert (page.parent / target).exists(), target
