"""``--dry_run``: every shipped configuration, the counts, and that nothing is loaded."""

import dataclasses
import re
import shutil
from pathlib import Path

import jax
import pytest
from slow import slow
from tiny import EVERY, TINY, TINY_BART, TINY_ROTARY, random_params, random_t5_params

from specdec.checkpoints import save_huggingface, save_t5x
from specdec.checkpoints.architectures import count_parameters, decode_model
from specdec.core.theory import speedup
from specdec.runs import dry_run, main
from specdec.runs.command_line import Given
from specdec.runs.published import TABLE_4

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs" / "experiments"
CONFIGS = sorted(EXPERIMENTS.rglob("*.gin"))
FAMILIES = ("t5_xxl", "t5_1_0", "flan")
DRAFTERS = sorted((ROOT / "configs" / "drafters").glob("*.gin"))
TREES = ROOT / "configs" / "trees"
QUICKSTART = EXPERIMENTS / "quickstart_ende.gin"
XXL = EXPERIMENTS / "t5_xxl" / "ende_xxl_small_g7_t0.gin"


def planned(files, bindings):
    given = Given([str(file) for file in files], bindings, None, "test")
    return main.decode(given, ROOT, dry_run=True)


def shown(capsys, files, *bindings):
    """What is printed for a configuration."""
    code = planned(files, bindings)
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


def cells(output, label):
    """The columns of a line, as numbers."""
    (line,) = (line for line in output.splitlines() if line.startswith(label))
    numbers = re.findall(r"([\d,.]+) (M|MB|GB)\b", line)
    return [float(n.replace(",", "")) * (1000 if unit == "GB" else 1) for n, unit in numbers]


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("loaded or allocated")

    monkeypatch.setattr("specdec.runs.prepared_run.load_pair", refuse)
    monkeypatch.setattr("specdec.checkpoints.loading.open_checkpoint", refuse)
    monkeypatch.setattr("specdec.data.tasks._seqio_tasks", refuse)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    arrays = len(jax.live_arrays())
    yield
    assert len(jax.live_arrays()) <= arrays


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_experiment(path, capsys):
    output = shown(capsys, [path])
    assert all(0 < read <= whole for read, whole in zip(
        cells(output, "of them read"), cells(output, "parameters"), strict=True
    ))  # fmt: skip
    if path.parent.name in FAMILIES:
        assert "in the paper, at gamma" in output
    if path.parent.name == "plans":
        assert "Fits: " in output
        assert "At least, on " in output


@pytest.mark.parametrize("path", DRAFTERS, ids=lambda path: path.stem)
def test_every_drafter(path, capsys):
    output = shown(capsys, [QUICKSTART, path])
    assert len(cells(output, "parameters")) in (1, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_twelve_rows_are_all_there(family, capsys):
    found = []
    for path in sorted((EXPERIMENTS / family).glob("*.gin")):
        output = shown(capsys, [path])
        task, size = re.search(r"alpha for (\w+), T5-XXL and (\S+),", output).groups()
        setting = re.search(r": speculative, gamma (\d+), temperature (\d),", output)
        gamma, temperature = map(int, setting.groups())
        (row,) = (
            row
            for row in TABLE_4
            if (row.task, row.draft, row.temperature) == (task, size, temperature)
        )
        assert row.gamma == gamma
        assert f"{row.expected} expected, {row.empirical} measured" in output
        speed = speedup(row.alpha, row.gamma, row.cost_ratio)
        assert f"  {speed:.2f}  at c = {row.cost_ratio:.3f}, the paper's" in output
        assert f"{size.removeprefix('T5-')}_g{gamma}_t{temperature}" in path.stem
        found.append(row)
    assert sorted(map(repr, found)) == sorted(map(repr, TABLE_4))


# Millions of parameters, all and of a decode step; T5 v1.1 XXL has 11,135.3 and 5,567.7.
@pytest.mark.parametrize(
    ("name", "total", "step"),
    [
        ("google/t5-v1_1-small", 77.0, 38.5),
        ("google/t5-v1_1-base", 247.6, 123.8),
        ("google/t5-v1_1-large", 783.2, 391.6),
        ("google/t5-v1_1-xl", 2849.8, 1424.9),
        ("google/t5-v1_1-xxl", 11135.3, 5567.7),
        ("google/flan-t5-xxl", 11135.3, 5567.7),
        ("t5-small", 60.5, 38.5),
        ("google-t5/t5-3b", 2851.6, 1442.3),
        ("elsewhere/t5-11b", 11307.3, 5670.1),
        ("gpt2", 124.4, 123.7),
        ("distilgpt2", 81.9, 81.1),
        ("openai-community/gpt2-medium", 354.8, 353.8),
        ("openai-community/gpt2-xl", 1557.6, 1556.0),
    ],
)
def test_parameters_of_public_checkpoints(name, total, step):
    config, _ = dry_run.find_config(name, ROOT)
    counts = [round(count / 1e6, 1) for count in count_parameters(config)]
    assert counts == [total, step]


@pytest.mark.parametrize("variant", [*TINY_BART, *TINY_ROTARY])
def test_parameters_are_those_of_the_models_arrays(variant):
    config = EVERY[variant]
    model, params = decode_model(config), random_params(config, 0)
    read = model.step_params(model.pack(params))
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, read)]
    assert [*count_parameters(config)] == sizes


@pytest.mark.parametrize("variant", ["m2m_100", "t5gemma2", *map(slow, ("bart", "llama"))])
def test_bytes_of_each_family(tmp_path, capsys, variant):
    """By hand: keys and values that several heads of queries share are there once."""
    config, rows = EVERY[variant], 2048
    save_huggingface(tmp_path / "it", config, jax.device_get(random_params(config, 0)))
    models = [f"{name}={str(tmp_path / 'it')!r}" for name in ("TARGET", "DRAFT")]
    sizes = ("MAX_INPUT_LEN=30", "MAX_DECODE_LEN=16", "DTYPE='float32'", "GAMMA=3")
    files = [QUICKSTART, HARDWARE / "tpu_v4.gin"]
    output = shown(capsys, files, *models, *sizes, f"BATCH_SIZE={rows}")
    heads = getattr(config, "num_kv_heads", config.num_heads)
    layer = 2 * rows * heads * config.head_dim * 4 / 1e6  # Of a position.
    each, length, inputs = layer * config.num_decoder_layers, 16 + 3 + 1, 32
    held = length + inputs if variant == "llama" else length
    assert cells(output, "self-attention cache") == pytest.approx([each * held] * 2, abs=0.01)
    crossed = 0 if variant == "llama" else inputs
    assert cells(output, "cross-attention") == pytest.approx([each * crossed] * 2, abs=0.01)
    assert "a block: " in output
    beyond = [line for line in output.splitlines() if line.startswith("the cache of ")]
    if variant != "t5gemma2":
        assert not beyond
        return
    # Two tokens before each of the four that the target scores, or of two that its draft is fed.
    for line, needed in zip(beyond, (2 + 4, 2 + 2), strict=True):
        said = f"keeps all positions; 1 of 2 layers need only {needed} of them: "
        assert said in line
        cost = float(re.search(r": ([\d.]+) MB more than needed$", line)[1])
        assert cost == pytest.approx(layer * (length - needed), abs=0.01)


def test_bytes_of_a_run(capsys):
    """By hand: layers x (keys and values) x batch x heads x head_dim x length x bytes."""
    bindings = ("BATCH_SIZE=4", "MAX_INPUT_LEN=100", "MAX_DECODE_LEN=60", "DTYPE='float32'")
    output = shown(capsys, [XXL], *bindings)
    assert cells(output, "all parameters") == [44540.0, 307.84]
    length = 64 + 7 + 1  # The bucket of 60, and a block that crosses its end.
    assert cells(output, "self-attention cache") == pytest.approx(
        [24 * 2 * 4 * 64 * 64 * length * 4 / 1e6, 8 * 2 * 4 * 6 * 64 * length * 4 / 1e6], abs=0.01
    )
    assert cells(output, "cross-attention") == pytest.approx(
        [24 * 2 * 4 * 64 * 64 * 128 * 4 / 1e6, 8 * 2 * 4 * 6 * 64 * 128 * 4 / 1e6], abs=0.01
    )
    assert cells(output, "logits of one call") == pytest.approx(
        [4 * 8 * 32128 * 4 / 1e6, 4 * 2 * 32128 * 4 / 1e6], abs=0.01
    )


def test_bytes_and_times_of_a_tree(capsys):
    """3 + 6 + 6 guesses: 16 tokens are scored, and the draft is called once a level."""
    bindings = ("BATCH_SIZE=4", "MAX_INPUT_LEN=100", "MAX_DECODE_LEN=60", "DTYPE='float32'")
    output = shown(capsys, [XXL, TREES / "branching.gin"], *bindings)
    assert ": speculative, tree 3-2-1, temperature 0," in output
    each, draft_each = 24 * 2 * 4 * 64 * 64 * 4 / 1e6, 8 * 2 * 4 * 6 * 64 * 4 / 1e6
    # The draft's leaves are never in its cache; up to two tokens are fed before its guesses.
    assert cells(output, "self-attention cache") == pytest.approx(
        [each * (64 + 15 + 1), draft_each * (64 + 9 + 1 + 2)], abs=0.01
    )
    assert cells(output, "logits of one call") == pytest.approx(
        [4 * 16 * 32128 * 4 / 1e6, 4 * 6 * 32128 * 4 / 1e6], abs=0.01
    )
    assert "c is 0.007 or more" in output
    assert "paper" not in output, "the paper's alpha is of one guess for a position"
    times = shown(capsys, [XXL, TREES / "branching.gin", HARDWARE / "tpu_v4.gin"])
    parts = re.findall(r"^(draft|target), (\d+) tokens? +(\d+) ", times, re.MULTILINE)
    assert parts == [
        ("target", "1", "1"), ("draft", "2", "1"), ("draft", "3", "1"), ("draft", "6", "1"),
        ("target", "16", "1"),
    ]  # fmt: skip
    dynamic = shown(capsys, [XXL, TREES / "best_first.gin", HARDWARE / "tpu_v4.gin"])
    assert "best-first tree of 16 nodes, 5 deep" in dynamic
    assert re.search(r"^draft, 4 tokens +4 ", dynamic, re.MULTILINE)
    assert re.search(r"^target, 17 tokens +1 ", dynamic, re.MULTILINE)


def test_a_tree_that_is_to_be_chosen_and_drafts_that_are_merged(capsys):
    output = shown(capsys, [XXL, TREES / "auto.gin", HARDWARE / "tpu_v4.gin"])
    assert ": speculative, tree auto, " in output
    assert "a block: " not in output
    merged = ("DRAFT=@Merged()", "Merged.drafts=('google/t5-v1_1-small', @Copying())")
    assert planned([XXL, TREES / "branching.gin"], merged) == 2
    assert "--dry_run plans one draft, not google/t5-v1_1-small + " in capsys.readouterr().err


def test_the_bandwidth_floor_of_c(capsys):
    assert "  3.43  at c = 0.007, the ratio of what decode steps read" in shown(capsys, [XXL])
    quickstart = shown(capsys, [QUICKSTART])
    assert "c is 0.070 or more" in quickstart
    assert cells(quickstart, "parameters") == [21.8, 1.8]  # Logits are tied.


MESHES = ROOT / "configs" / "meshes"
HARDWARE = ROOT / "configs" / "hardware"


def test_bytes_on_each_device_of_a_mesh_that_is_not_there(capsys):
    assert jax.device_count() == 1
    bindings = ("BATCH_SIZE=4", "MAX_INPUT_LEN=100", "MAX_DECODE_LEN=60", "DTYPE='float32'")
    output = shown(capsys, [XXL, MESHES / "2x4.gin"], *bindings)
    assert "On each of the 8 devices of a mesh of 2 x 4 (data x model):" in output
    _, each = output.split("On each")
    # The target is cut by 4, the draft whole; both decode half of the rows.
    assert cells(each, "all parameters") == pytest.approx([44540 / 4, 307.76], rel=1e-3)
    keys = 24 * 2 * 2 * 64 * 64 * 4 / 1e6
    draft_keys = 8 * 2 * 2 * 6 * 64 * 4 / 1e6
    assert cells(each, "self-attention cache") == pytest.approx(
        [keys * 72 / 4, draft_keys * 72], abs=0.01
    )
    assert cells(each, "cross-attention") == pytest.approx(
        [keys * 128 / 4, draft_keys * 128], abs=0.01
    )
    # Logits are gathered: whole on every device.
    assert cells(each, "logits of one call") == pytest.approx(
        [2 * 8 * 32128 * 4 / 1e6, 2 * 2 * 32128 * 4 / 1e6], abs=0.01
    )


def collectives(output):
    """The lines of what devices exchange in a block."""
    _, found = output.split("Collectives in a block:\n")
    return [line.strip() for line in found.split("\n\n")[0].splitlines()]


def test_collectives_of_a_block(capsys):
    """Three sums a layer and the embedding's; the logits once. A draft that is whole has none."""
    target = [
        "target, 8 tokens: 73 all-reduce of 65.5 kB over model (8 devices)",
        "target, 8 tokens: 1 all-gather of 1.03 MB over model (8 devices)",
    ]
    assert collectives(shown(capsys, [XXL, MESHES / "1x8.gin"])) == target
    ended = "have all rows ended: 1 all-reduce of 1 B over data (8 devices)"
    output = shown(capsys, [XXL, MESHES / "8x1.gin"], "BATCH_SIZE=8")
    assert collectives(output) == [ended]
    alike = ("DRAFT_RULES=%TARGET_RULES", "DeviceMesh.model=2", "GAMMA=3")
    found = collectives(shown(capsys, [XXL, MESHES / "1x8.gin"], *alike))
    assert found[:4] == [
        "draft, 2 tokens: 25 all-reduce of 2.0 kB over model (2 devices)",
        "draft, 2 tokens: 1 all-gather of 128.5 kB over model (2 devices)",
        "draft, 1 token, 2 times: 25 all-reduce of 1.0 kB over model (2 devices)",
        "draft, 1 token, 2 times: 1 all-gather of 128.5 kB over model (2 devices)",
    ]
    assert collectives(shown(capsys, [XXL, MESHES / "1x8.gin"], "DeviceMesh.model=1")) == ["none"]


def test_rules_that_are_not_planned(capsys):
    rules = "TARGET_RULES=(('batch', 'data'), ('heads', 'model'))"
    files = [XXL, MESHES / "1x8.gin", HARDWARE / "tpu_v4.gin"]
    output = shown(capsys, files, rules)
    assert "Fits: " in output
    assert "not planned for such a cut of heads and joined_kv apart." in output
    assert "At least" not in output


def test_the_floor_by_hand(capsys):
    """One device that reads a GB a second and computes at once: milliseconds are megabytes."""
    figures = ("memory=1e12", "bandwidth=1e9", "peak=1e30", "interconnect=1")
    bindings = [f"Hardware.{figure}" for figure in figures]
    output = shown(capsys, [XXL, HARDWARE / "tpu_v4.gin"], *bindings, "Hardware.name='toy'")
    _, times = output.split("At least, on toy")
    config, _ = dry_run.find_config("t5-v1_1-xxl", ROOT)
    # Position biases and the scales of norms have four bytes.
    weights = count_parameters(config)[1] * 2 + (64 * 32 + (24 * 3 + 1) * 4096) * 2
    caches = 24 * 2 * 64 * 64 * 2 * (256 + 256 + 1)
    milliseconds = (weights + caches) / 1e6
    assert f"a token of plain decoding: {milliseconds:.3f} ms" in times
    assert "Collectives" not in output
    assert "latency" not in output
    c, v = map(float, re.search(r"c = ([\d.]+), v = ([\d.]+)", times).groups())
    assert (c, v) == (pytest.approx(0.007, abs=1e-3), pytest.approx(1, abs=1e-3))
    assert "at the paper's alpha 0.75: 3.60 tokens a block (Equation 1), 3.4" in times
    assert "3.16 at the paper's c" in times


def test_a_replicated_draft_costs_the_more_the_more_devices(capsys):
    def found(*bindings):
        output = shown(capsys, [XXL, MESHES / "1x8.gin", HARDWARE / "tpu_v4.gin"], *bindings)
        return float(re.search(r"; c = ([\d.]+)", output)[1])

    assert found() > 6 * found("DeviceMesh.model=1")


def test_what_does_not_fit_says_where_it_would(capsys):
    files = [XXL, MESHES / "1x8.gin", HARDWARE / "tpu_v5e.gin"]
    assert "Fits: " in shown(capsys, files)
    output = shown(capsys, files, "DeviceMesh.model=2", "DTYPE='float32'")
    assert "Does NOT fit: 22." in output
    assert "of the 16.00 GB of a TPU v5e on each device" in output
    assert "It would on 4 devices, a mesh of 1 x 4." in output
    assert "It would on no mesh" in shown(capsys, files, "BATCH_SIZE=65536")


def test_a_plan_without_guesses(capsys):
    files = [XXL, HARDWARE / "h200.gin"]
    for more in ([ROOT / "configs/methods/autoregressive.gin"], []):
        output = shown(capsys, files + more, *([] if more else ["GAMMA='auto'"]))
        assert "a token of plain decoding: " in output
        assert "a block: " not in output
    copying = shown(capsys, [*files, ROOT / "configs/drafters/copying.gin"], "PAPER_ROW=None")
    assert "c = 0.000" in copying
    assert "speculation pays from alpha 0.0" in copying


def test_a_directorys_config_json_comes_first(tiny, capsys):
    output = shown(capsys, [tiny.gin])
    assert output.count("config.json") == 2
    assert str(tiny.target) in output


def test_other_gammas_and_temperatures(capsys):
    assert "at gamma 7: 3.2 expected" in shown(capsys, [XXL], "GAMMA=4")
    assert "in the paper" not in shown(capsys, [XXL], "TEMPERATURE=0.5")
    plain = shown(capsys, [XXL, ROOT / "configs/methods/autoregressive.gin"])
    assert cells(plain, "logits of one call")[0] == pytest.approx(0.13)
    assert "at c =" not in plain
    assert "gamma auto" in shown(capsys, [XXL], "GAMMA='auto'")


def test_drafts_that_are_no_checkpoint(capsys):
    drafters = ROOT / "configs" / "drafters"
    size = (ROOT / "specdec/bundled/quickstart/ngrams.safetensors").stat().st_size
    tables = f"n-gram tables {size / 1e6:.2f} MB"
    bigram = shown(capsys, [QUICKSTART, drafters / "quickstart_bigram.gin"])
    assert tables in bigram
    assert len(cells(bigram, "parameters")) == 1
    hierarchical = shown(capsys, [QUICKSTART, drafters / "quickstart_over_bigram.gin"])
    assert tables in hierarchical
    assert len(cells(hierarchical, "parameters")) == 2


def test_weights_of_few_bits(capsys):
    """A copy of the target holds its kernels and logits' kernel again; c is the ratio of bytes."""
    quantized = ROOT / "configs" / "drafters" / "quantized.gin"
    config, _ = dry_run.find_config("t5-v1_1-xxl", ROOT)
    kernels = count_parameters(config)[1]  # And a few norms.

    for bits, ours in ((8, 1), (4, 0.5 + 2 / 16)):
        output = shown(capsys, [XXL, quantized], f"Quantized.bits={bits}", "PAPER_ROW=None")
        assert f"target in int{bits}" in output
        held = cells(output, "all parameters")
        assert held[1] == pytest.approx(kernels * ours / 1e6, rel=0.01)
        assert cells(output, "cross-attention")[1] == 0
        c = float(re.search(r"c is ([\d.]+) or more", output)[1])
        assert c == pytest.approx(ours / 2, abs=0.005)  # The target has bfloat16.
    rounded = shown(capsys, [XXL], "WEIGHTS='int8'")
    assert "bfloat16, int8 weights" in rounded
    assert cells(rounded, "all parameters")[0] == pytest.approx(
        cells(shown(capsys, [XXL]), "all parameters")[0] / 2, rel=0.01
    )


def test_weights_of_few_bits_on_a_mesh(capsys):
    quantized = ROOT / "configs" / "drafters" / "quantized.gin"
    assert planned([XXL, quantized, MESHES / "1x8.gin"], []) == 2
    assert "cannot be cut, and this mesh cuts" in capsys.readouterr().err
    assert "data x model" in shown(capsys, [XXL, quantized, MESHES / "8x1.gin"], "BATCH_SIZE=8")


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("TARGET='nowhere/at/all'", "nowhere/at/all is neither a directory nor named as a public"),
        ("DRAFT='google/t5-v1_1-huge'", "has no t5_1_1_huge, only t5_1_1_110b, t5_1_1_base"),
        ("PAPER_ROW=('EnDe', 'T5-tiny')", "PAPER_ROW must be one of"),
        ("PAPER_ROW=3", "PAPER_ROW must be one of [('CNNDM', 'T5-base'), "),
        ("GAMMA=0", "gamma must be in"),
        ("GAMA=3", "Did you mean GAMMA?"),
        ("DTYPE='int8'", "dtype must be 'float32' or 'bfloat16'"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, binding, message):
    code = planned([XXL], [binding])
    told = capsys.readouterr()
    assert code == 2
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err


def test_a_damaged_config_json(tiny, tmp_path, capsys):
    (tmp_path / "config.json").write_text("{")
    bindings = [f"DRAFT={str(tmp_path)!r}"]
    assert planned([tiny.gin], bindings) == 2
    assert "is not valid JSON" in capsys.readouterr().err


def test_a_t5x_checkpoint_is_sized_by_its_shapes(tmp_path):
    params = random_t5_params(TINY["v1.0"], 0)
    save_t5x(tmp_path, TINY["v1.0"], params, 3)
    for array in tmp_path.glob("*/target.*"):
        shutil.rmtree(array)
    config, found = dry_run.find_config(str(tmp_path), ROOT)
    assert found == "its shapes"
    assert dataclasses.replace(config, relative_attention_max_distance=12) == TINY["v1.0"]


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (("DeviceMesh.model=3",), "A mesh axis of 3 devices does not divide num_heads = 64 and"),
        (("DRAFT_RULES=%TARGET_RULES",), "does not divide num_heads = 6: choose a size that"),
        (
            ("DeviceMesh.data=2", "BATCH_SIZE=3"),
            "batch_size is 3, but the mesh cuts a batch into 2",
        ),
        (("Hardware.peak=0",), "Hardware.peak must be set to a positive number, got 0."),
        (("Hardware.flops=1",), "flops"),
        (
            ("HARDWARE='tpu_v4'", "Hardware.peak=0"),
            "HARDWARE must be a device's figures, as in --gin",
        ),
    ],
)
def test_meshes_and_figures_that_do_not_fit(capsys, bindings, message):
    files = [XXL, MESHES / "1x8.gin", HARDWARE / "tpu_v4.gin"]
    code = planned(files, bindings)
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err


TURING = EXPERIMENTS / "gpt2_xl_turing.gin"


@pytest.mark.parametrize(
    "changes",
    [{}, {"t_draft_ms": 5.0}, {"t_target_ms": 50.0}, {"accepted_share": 0.6}, {"gamma": 2}],
    ids=str,
)
def test_a_run_that_others_reported(capsys, changes):
    """Their arithmetic on their numbers, and ours; a plan's own ratios beside it."""
    bindings = [f"ReportedRun.{name}={value}" for name, value in changes.items()]
    output = shown(capsys, [TURING], *bindings)
    figures = {"t_target_ms": 73.3, "t_draft_ms": 11.9, "accepted_share": 0.8125, "gamma": 4}
    target, draft, share, gamma = (figures | changes).values()
    tokens, c = share * (gamma + 1), draft / target
    predicted = tokens * target / (gamma * draft + target)
    assert f"= {predicted:.2f} times faster predicted, 2.12 measured" in output
    assert (f"{predicted:.2f}" == "2.46") == (not changes)
    alpha = float(re.search(rf"= {tokens:.4f}, c = .* = {c:.3f}; by .* alpha = (\S+)", output)[1])
    assert (1 - alpha ** (gamma + 1)) / (1 - alpha) == pytest.approx(tokens, abs=5e-3)
    theorem, v = map(float, re.search(r"\(v = 1\): (\S+); what .* v = (\S+)", output).groups())
    assert theorem == pytest.approx(predicted, abs=5e-3)
    assert tokens / (gamma * c + v) == pytest.approx(2.12, abs=0.02)
    read = float(re.search(r"^c is (\S+) or more", output, re.MULTILINE)[1])
    ours = float(re.search(r"v = 1.000, the ratio of what .* read: (\S+)", output)[1])
    assert ours == pytest.approx(tokens / (gamma * read + 1), abs=0.01)


def test_a_reported_run_beside_a_devices_floors(capsys):
    output = shown(capsys, [TURING, ROOT / "configs/hardware/h200.gin"])
    c, v = re.search(r"a block: .* c = (\S+), v = (\S+)$", output, re.MULTILINE).groups()
    assert f"at c = {c}, v = {v}, at best on " in output


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ("ReportedRun.t_draft_ms=0", "ReportedRun.t_draft_ms must be a positive number, got 0"),
        ("ReportedRun.accepted_share=4.06", "accepted_share must be in [1 / (gamma + 1), 1]"),
        ("REPORTED='post'", "REPORTED must be @ReportedRun() or None, got 'post'"),
    ],
)
def test_a_reported_run_of_wrong_figures(capsys, binding, message):
    assert planned([TURING], [binding]) == 2
    assert message in capsys.readouterr().err
