"""``--dry_run``: every shipped configuration, its bytes, and that nothing is loaded."""

import re
import shutil
from pathlib import Path

import jax
import pytest
from tiny import EVERY, TINY, TINY_BART, TINY_ROTARY, changed, random_params

from specdec.checkpoints import save_t5x
from specdec.checkpoints.architectures import count_parameters, decode_model
from specdec.runs import dry_run
from specdec.runs import main as command
from specdec.runs.command_line import Given
from specdec.runs.transcribe import transcribe

pytestmark = pytest.mark.usefixtures("nothing_is_loaded")
ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs" / "experiments"
SPEECH = sorted((EXPERIMENTS / "speech").glob("*.gin"))
CONFIGS = sorted({*EXPERIMENTS.rglob("*.gin")} - {*SPEECH})
DRAFTERS = sorted((ROOT / "configs" / "drafters").glob("*.gin"))
TREES = ROOT / "configs" / "trees"
QUICKSTART = EXPERIMENTS / "quickstart_ende.gin"
XXL = EXPERIMENTS / "t5_xxl" / "ende_xxl_small_g7_t0.gin"


def planned(files, bindings):
    given = Given([str(file) for file in files], bindings, None, "test")
    return command.decode(given, ROOT, dry_run=True)


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


def parameters(output):
    """Millions of parameters of each model that would be read."""
    found = re.findall(r"^Reads .*: ([\d,.]+) M parameters", output, re.MULTILINE)
    return [float(count.replace(",", "")) for count in found]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_experiment(path, capsys):
    output = shown(capsys, [path])
    whole, read = cells(output, "all parameters"), cells(output, "weights that a decode step")
    assert min(read) > 0
    assert read[0] <= whole[0]
    assert len(parameters(output)) == len(read) == len(whole)
    assert "Reads rows of " in output
    assert ("Fits: " in output) == (path.parent.name == "plans")


@pytest.mark.parametrize("path", SPEECH, ids=lambda path: path.stem)
def test_every_experiment_of_speech(path, capsys, tmp_path):
    (tmp_path / "a.wav").touch()
    given = Given([str(path)], ["HARDWARE='v5e'"], None, "test")
    assert transcribe(given, ROOT, audio=[str(tmp_path)], dry_run=True) == 0
    output = capsys.readouterr().out
    assert "Reads 1 files of sound, a.wav" in output
    assert "Fits: " in output
    shared = path.stem == "large_v3_distil"
    assert (parameters(output)[-1] > 700) == shared
    # Such a draft holds its decoder alone, with its embedding and its keys' and values' kernels.
    count = 51866 * 1280 + 448 * 1280 + 2 * (16 * 1280**2 + 21 * 1280) + 2 * 1280
    assert not shared or cells(output, "all parameters")[1] == pytest.approx(count * 2 / 1e6, 1e-3)
    for cross in cells(output, "cross-attention")[: 1 + shared]:
        assert cross > 0


@pytest.mark.parametrize("path", DRAFTERS, ids=lambda path: path.stem)
def test_every_drafter(path, capsys):
    output = shown(capsys, [QUICKSTART, path])
    assert len(parameters(output)) in (1, 2)


# Millions of parameters, all and of a decode step.
@pytest.mark.parametrize(
    ("name", "total", "step"),
    [
        ("google/t5-v1_1-small", 77.0, 38.5),
        ("google/flan-t5-xxl", 11135.3, 5567.7),
        ("google-t5/t5-3b", 2851.6, 1442.3),
        ("elsewhere/t5-11b", 11307.3, 5670.1),
        ("distilgpt2", 81.9, 81.1),
        ("openai-community/gpt2-xl", 1557.6, 1556.0),
        # By the models' cards 39, 764, 1550, 1550, 809, 166, 394 and 756 million.
        ("openai/whisper-tiny.en", 37.8, 28.2),
        ("openai/whisper-medium", 763.9, 405.8),
        ("openai/whisper-large", 1543.3, 801.0),
        ("openai/whisper-large-v3", 1543.5, 801.0),
        ("openai/whisper-large-v3-turbo", 808.9, 158.2),
        ("distil-whisper/distil-small.en", 166.1, 72.9),
        ("distil-whisper/distil-medium.en", 394.4, 82.5),
        ("distil-whisper/distil-large-v3.5", 756.4, 112.3),
    ],
)
def test_parameters_of_public_checkpoints(name, total, step):
    config, _ = dry_run.find_config(name, ROOT)
    counts = [round(count / 1e6, 1) for count in count_parameters(config)]
    assert counts == [total, step]


@pytest.mark.parametrize("variant", [*TINY_BART, *TINY_ROTARY])
def test_parameters_are_those_of_the_models_arrays(variant):
    config = EVERY[variant]
    model, params = decode_model(config, "in_out"), random_params(config, 0)
    read = model.step_params(model.pack(params))
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, read)]
    assert [*count_parameters(config)] == sizes


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


MESHES = ROOT / "configs" / "meshes"


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


def test_what_does_not_fit_says_where_it_would(capsys):
    files, v5e = [XXL, MESHES / "1x8.gin"], "HARDWARE='v5e'"
    assert "Fits: 2.97 GB of the 17.18 GB of each TPU v5e" in shown(capsys, files, v5e)
    output = shown(capsys, files, v5e, "DeviceMesh.model=2", "DTYPE='float32'")
    assert "Does NOT fit: 22.80 GB of the 17.18 GB of each TPU v5e, without" in output
    assert "It would on 4 devices, a mesh of 1 x 4." in output
    assert "It would on no mesh" in shown(capsys, files, v5e, "BATCH_SIZE=65536")
    assert "Does NOT fit: " in shown(capsys, [QUICKSTART], "HARDWARE=97e6")
    assert "Fits: " in shown(capsys, [QUICKSTART], "HARDWARE=98e6")


def test_what_is_read_and_what_would_be_written(capsys, tmp_path):
    given = Given([str(XXL)], ["BAD_ROWS='skip'"], str(tmp_path / "out"), "test")
    assert command.decode(given, ROOT, dry_run=True, distributed=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("Reads", "Writes"))] == [
        "Reads google/t5-v1_1-xxl: 11,135.3 M parameters (by configs/shapes/t5_1_1_xxl.gin)",
        "Reads google/t5-v1_1-small: 77.0 M parameters (by configs/shapes/t5_1_1_small.gin)",
        "Reads rows of seqio_task: name = 'wmt_t2t_ende_v003', split = 'test', vocabulary = "
        "'gs://t5-data/vocabs/cc_all.32000/sentencepiece.model', max_input_len = 256",
        f"Writes to {tmp_path / 'out'}: operative_config.gin, skipped.jsonl, decodes.jsonl, "
        "results.json, trace.html.",
    ]
    assert "Each process holds a copy of the target" in lines[-1]
    assert not (tmp_path / "out").exists()


def test_a_file_or_texts_in_the_place_of_the_task(capsys):
    given = Given([str(XXL)], [], None, "test")
    assert command.decode(given, ROOT, texts=["a", "b"], dry_run=True) == 0
    assert "Reads rows of given_texts: texts = ['a', 'b']" in capsys.readouterr().out
    assert command.decode(given, ROOT, input_file="no.txt", dry_run=True) == 0
    assert "Reads rows of text_file: path = 'no.txt'" in capsys.readouterr().out


def test_drafts_that_are_no_checkpoint(capsys):
    drafters = ROOT / "configs" / "drafters"
    size = (ROOT / "specdec/bundled/quickstart/ngrams.safetensors").stat().st_size
    tables = f"Reads n-gram tables: {size / 1e6:.2f} MB"
    bigram = shown(capsys, [QUICKSTART, drafters / "quickstart_bigram.gin"])
    assert tables in bigram
    assert len(parameters(bigram)) == 1
    hierarchical = shown(capsys, [QUICKSTART, drafters / "quickstart_over_bigram.gin"])
    assert tables in hierarchical
    assert len(parameters(hierarchical)) == 2


def test_weights_of_few_bits(capsys):
    """A copy of the target holds its kernels and logits' kernel again; a step reads these."""
    quantized = ROOT / "configs" / "drafters" / "quantized.gin"
    config, _ = dry_run.find_config("t5-v1_1-xxl", ROOT)
    kernels = count_parameters(config)[1]  # And a few norms.

    for bits, ours in ((8, 1), (4, 0.5 + 2 / 16)):
        output = shown(capsys, [XXL, quantized], f"Quantized.bits={bits}")
        assert f"target in int{bits}" in output
        held = cells(output, "all parameters")
        assert held[1] == pytest.approx(kernels * ours / 1e6, rel=0.01)
        assert cells(output, "cross-attention")[1] == 0
        target, draft = cells(output, "weights that a decode step reads")
        assert draft / target == pytest.approx(ours / 2, abs=0.005)  # The target has bfloat16.
    rounded = shown(capsys, [XXL], "WEIGHTS='int8'")
    assert "bfloat16, int8 weights" in rounded
    assert cells(rounded, "all parameters")[0] == pytest.approx(
        cells(shown(capsys, [XXL]), "all parameters")[0] / 2, rel=0.01
    )


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (("TARGET='nowhere/at/all'",), "nowhere/at/all is neither a directory nor named as a pub"),
        (("DRAFT='google/t5-v1_1-huge'",), "has no t5_1_1_huge, only t5_1_1_110b, t5_1_1_base"),
        (("HARDWARE='tpu_v4'",), "No chip or slice is called 'tpu_v4'. One chip: v4,"),
        (("HARDWARE=0",), "HARDWARE must be a chip's name, such as 'v4' or 'h200', or bytes of"),
        (("GAMMA=0",), "gamma must be in"),
        (("DeviceMesh.model=3",), "A mesh axis of 3 devices does not divide num_heads = 64 and"),
        (("DRAFT_RULES=%TARGET_RULES",), "does not divide num_heads = 6: choose a size that"),
        (
            ("DeviceMesh.data=2", "BATCH_SIZE=3"),
            "batch_size is 3, but the mesh cuts a batch into 2",
        ),
        (
            ("DRAFT=@Merged()", "Merged.drafts=('google/t5-v1_1-small', @Copying())"),
            "--dry_run plans one draft, not google/t5-v1_1-small + ",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told_in_one_line(capsys, bindings, message):
    code = planned([XXL, MESHES / "1x8.gin"], bindings)
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err


def test_a_t5x_checkpoint_is_sized_by_its_shapes(tmp_path):
    params = random_params(TINY["v1.0"], 0)
    save_t5x(tmp_path, TINY["v1.0"], params, 3)
    for array in tmp_path.glob("*/target.*"):
        shutil.rmtree(array)
    config, found = dry_run.find_config(str(tmp_path), ROOT)
    assert found == "its shapes"
    assert changed(config, relative_attention_max_distance=12) == TINY["v1.0"]
