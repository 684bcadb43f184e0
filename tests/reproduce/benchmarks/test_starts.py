"""Cold starts: who is ahead from how many tokens on, what is kept, and what a new process tells."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from tiny import TINY, random_params

from specdec.checkpoints import save_huggingface
from specdec.reproduce.benchmarks import new_process, report, starts
from specdec.reproduce.benchmarks.contract import WorkloadError
from specdec.reproduce.benchmarks.starts import Start, ahead, measure
from specdec.reproduce.pages import sections
from specdec.reproduce.pages.tables import render

PLAIN, PEER, CT2 = "specdec autoregressive", "transformers greedy", "CTranslate2 float32"
BEGUN = (1.0, 0.5)  # Seconds to import and to load.


@pytest.fixture
def natural(tiny_workload):
    """Two rows that end by themselves, one at a time, from checkpoints."""
    return dataclasses.replace(
        tiny_workload, lengths=None, batch_size=1, forced_alpha=None, target="target", draft="draft"
    )


def begun(system, kept, first, token):
    """A system's start: a first token after ``first`` seconds, and each of ten in ``token``."""
    imported, loaded = BEGUN
    return Start(
        system, kept, None, (imported,), (loaded,), (first - imported - loaded,),
        (first + 10 * token,), (10 * token,), 10, 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((2.0, 1.0), (3.0, 2.0)), ((2.0, 1.0), (3.0, 1.0)), ((2.0, 2.0), (5.0, 1.0)),
        ((2.0, 2.0), (5.5, 1.0)), ((5.0, 1.0), (2.0, 2.0)), ((5.5, 1.0), (2.0, 2.0)),
        ((3.0, 2.0), (2.0, 1.0)), ((3.0, 1.0), (2.0, 1.0)), ((2.0, 1.0), (2.0, 2.0)),
    ],
)  # fmt: skip
def test_ahead_is_where_fewer_seconds_are_behind_it(ours, theirs):
    def seconds(number, first, token):
        return first + (number - 1) * token

    first, last = ahead(begun(PLAIN, None, *ours), begun(PEER, None, *theirs))
    within = {
        number for number in range(1, 20)
        if first is not None and first <= number <= (last or 20)
    }  # fmt: skip
    assert within == {n for n in range(1, 20) if seconds(n, *ours) < seconds(n, *theirs)}


TOKENS = [[5, 6, 1], [7, 1]]


@pytest.fixture
def asked(monkeypatch):
    """Answers of processes that are not there, and what they were asked in which order."""
    calls = []

    def run(name, workload, lengths, options, kept):
        calls.append((name, lengths, kept.exists() and any(kept.iterdir())))
        kept.mkdir(exist_ok=True)
        (kept / "left").touch()
        if name == CT2:
            return {"absent": {"at": 0.1, "why": "not installed"}}
        slow = 2.0 if name == PEER else 1.0
        times = dict(zip(new_process.STEPS, (0.25, 0.75, 1.0, 1.5, 1.5 + slow), strict=True))
        steps = {step: {"at": at} for step, at in times.items()}
        steps["loaded"]["versions"] = {"x": "1"}
        steps["all"]["tokens"] = TOKENS
        return steps

    monkeypatch.setattr(starts, "_run", run)
    return calls


def test_what_is_kept_is_there_in_every_other_way_only(natural, asked):
    found = measure(natural, (PLAIN, PEER, CT2), 2, {"threads": 1})
    once = [(PLAIN, None, False), (PEER, [3, 2], False), (CT2, [3, 2], False)]
    ways = [(PLAIN, [3, 2], False), (PLAIN, [3, 2], True), (PEER, [3, 2], True)]
    assert asked == [*once, *ways, *reversed(ways)]
    assert [(s.system, s.kept) for s in found] == [
        (PLAIN, "nothing"), (PLAIN, "programs"), (PEER, None), (CT2, None),
    ]  # fmt: skip
    plain = found[0]
    assert plain.import_seconds == (0.25, 0.25)
    assert plain.load_seconds == (0.5, 0.5)
    assert plain.first_token_seconds == (0.25, 0.25)
    assert plain.all_seconds == (1.5, 1.5)
    assert (plain.ready, plain.token_seconds) == (1.0, 0.2)
    assert (plain.num_tokens, plain.same_rows, plain.versions) == (5, 2, {"x": "1"})


def test_there_must_be_a_repetition(natural):
    with pytest.raises(WorkloadError, match="at least one repetition, got 0"):
        measure(natural, (PLAIN,), 0, {"threads": 1})


def test_tables(natural, tmp_path):
    found = [
        begun(PLAIN, "nothing", 5.0, 0.1), begun(PLAIN, "programs", 2.0, 0.1),
        begun(PEER, None, 3.0, 0.2), begun("CTranslate2 int8", "conversion", 1.75, 0.15),
        Start(CT2, None, "not installed"),
    ]  # fmt: skip
    result = json.loads(json.dumps(report.start_numbers(natural, found)))
    (_, times), (headings, tokens) = report.tables(result)
    assert times[0] == [
        PLAIN, "nothing", "1.00", "0.50", "3.50", "10", "6.00", "6.00 to 6.00", "2/2"
    ]  # fmt: skip
    assert [row[1] for row in times] == [
        "nothing", "programs", "–", "conversion", "absent: not installed"
    ]  # fmt: skip
    assert headings[1:] == [PEER, "CTranslate2 int8 (conversion kept)"]
    assert tokens == [
        [f"{PLAIN} (nothing kept)", "from 22", "from 67"],
        [f"{PLAIN} (programs kept)", "at once", "from 7"],
    ]
    assert "at once" in report.text(result)
    content = {"workloads": [result], "device": "2 cores", "threads": 2, "repetitions": 1}
    path = tmp_path / "results/benchmark_start/results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    page = render(tmp_path, sections.benchmark("start"))
    assert f"| {PLAIN} (programs kept) | at once | from 7 |" in page
    assert f"| {PLAIN} | programs | 2.0 | 3.0 | 10 |" in sections.sections(tmp_path)["README.md"](
        "start"
    )


def test_a_process_takes_all_steps(natural, tmp_path):
    for role, seed in (("target", 0), ("draft", 1)):
        params = random_params(TINY["v1.1"], seed)
        save_huggingface(tmp_path / role, TINY["v1.1"], jax.device_get(params))
    where = {role: str(tmp_path / role) for role in ("target", "draft")}
    steps = {}
    new_process.start(
        PLAIN, dataclasses.replace(natural, **where), None, {"threads": 1},
        lambda step, **more: steps.update({step: more}),
    )  # fmt: skip
    assert tuple(steps) == new_process.STEPS
    assert all(steps["all"]["tokens"])
    assert "jax" in steps["loaded"]["versions"]


def test_a_process_that_fails_says_why(natural, tmp_path):
    with pytest.raises(RuntimeError, match=r"specdec autoregressive: CheckpointError: .*target"):
        starts._run(PLAIN, natural, None, {"threads": 1}, tmp_path)


def test_programs_are_kept_where_the_process_is_told_to_only(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    monkeypatch.setenv("SPECDEC_KEEP_PROGRAMS", "0")
    found = starts._environment(tmp_path)
    assert not {"JAX_COMPILATION_CACHE_DIR", "SPECDEC_KEEP_PROGRAMS"} & found.keys()
    assert found["SPECDEC_CACHE"] == str(tmp_path)


def test_processes_of_peers_know_no_jax():
    modules = ["new_process", "contract", "systems.huggingface", "systems.ct2"]
    lines = [f"import specdec.reproduce.benchmarks.{name}" for name in modules]
    lines += ["import sys", "sys.exit('jax' in sys.modules)"]
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)]).returncode == 0


def test_a_conversion_is_kept(natural, tmp_path, monkeypatch):
    for package in ("ctranslate2", "transformers", "torch"):
        pytest.importorskip(package)
    from specdec.reproduce.benchmarks.systems import ct2

    shape = dataclasses.replace(TINY["v1.1"], vocab_size=32)
    save_huggingface(tmp_path / "target", shape, jax.device_get(random_params(shape, 0)))
    workload = dataclasses.replace(natural, target=str(tmp_path / "target"))
    options = {"threads": 1, "kept": str(tmp_path / "kept")}
    first = ct2.System(workload, "float32", options).decode([0], [4])
    assert list(Path(options["kept"]).iterdir())
    monkeypatch.setattr(ct2, "_convert", None)
    assert ct2.System(workload, "float32", options).decode([0], [4]) == first
