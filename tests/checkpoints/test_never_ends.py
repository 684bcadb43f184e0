"""Checkpoints without an EOS: outputs end at their limit, as with transformers' generate."""

import json
import shutil

import pytest
from log_probs import read_by_transformers
from tiny import TINY, TINY_GPT, changed, random_params

import specdec
from specdec.checkpoints import CheckpointError, load_huggingface, save_huggingface
from specdec.checkpoints.loading import load_model
from specdec.runs.convert import convert

RANDOM = {
    # Of equal depths: transformers' cache has as many layers as the encoder.
    "t5": (changed(TINY["v1.1"], num_encoder_layers=2), random_params),
    "gpt": (TINY_GPT["gpt"], random_params),
}
LIMIT = 20
ROWS = [[3, 5, 7, 2, 11], [4, 4, 9], [6, 8, 2, 10, 12, 3, 5]]
NO_FILE, NO_FIELD, NULL, END = "no file", "no field", "null", "the end"
# eos_token_id in config.json and in generation_config.json, and whether END ends outputs.
CASES = [(END, NO_FILE, True), (NULL, END, True), (END, NULL, False), (END, NO_FIELD, False)]


def write_ends(directory, end, config, generation):
    for name, kind in (("config.json", config), ("generation_config.json", generation)):
        path = directory / name
        raw = json.loads(path.read_text())
        if kind == NO_FIELD:
            del raw["eos_token_id"]
        else:
            raw["eos_token_id"] = end if kind == END else None
        path.write_text(json.dumps(raw))
        if kind == NO_FILE:
            path.unlink()


def generated(torch, directory, **options):
    """What transformers makes of each row alone."""
    model, found = read_by_transformers(directory), []
    for row in ROWS:
        given = torch.tensor([row])
        out = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=LIMIT,
            **options,
        )[0].tolist()  # fmt: skip
        found.append(out[1 if model.config.is_encoder_decoder else len(row) :])
    return found


@pytest.fixture(scope="module", params=RANDOM)
def endless(request, tmp_path_factory, torch):
    """A directory with an EOS in none of its files, and what transformers makes of the rows."""
    pytest.importorskip("transformers")
    config, random = RANDOM[request.param]
    directory = tmp_path_factory.mktemp(request.param) / "endless"
    save_huggingface(directory, config, random(config, 0))
    write_ends(directory, None, NULL, NULL)
    rows = generated(torch, directory)
    assert {len(row) for row in rows} == {LIMIT}
    return directory, rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]}")
def test_who_decides(endless, tmp_path, torch, case):
    """generation_config.json alone, where there is one: as transformers' own loop shows."""
    directory, free = endless
    config, generation, ends = case
    end = free[0][4]
    shutil.copytree(directory, tmp_path / "target")
    write_ends(tmp_path / "target", end, config, generation)
    found = load_huggingface(tmp_path / "target")[0]
    assert (found.eos_id, found.more_eos_ids) == (end if ends else None, ())
    expected = generated(torch, tmp_path / "target")
    assert (len(expected[0]) < LIMIT) == ends
    assert (expected == free) == (not ends)
    if generation == NO_FIELD:  # transformers does not look for it in config.json then.
        with pytest.warns(UserWarning, match=r"generation_config.json .* no eos_token_id: outputs"):
            load_model(str(tmp_path / "target"), "float32")


def test_outputs_are_those_of_transformers(endless, tmp_path):
    """Plain and speculative, in a batch; a draft may have an EOS where the target has none."""
    directory, expected = endless
    shutil.copytree(directory, tmp_path / "draft")
    write_ends(tmp_path / "draft", expected[0][4], END, END)
    pair = specdec.load_pair(target=directory, draft=tmp_path / "draft")
    assert pair.target.model.eos_ids == ()
    out = pair.generate(
        ROWS, gamma=3, sampling=specdec.SamplingConfig(0.0), max_decode_len=LIMIT, batch_size=3
    )
    assert [row.tolist() for row in out.tokens] == expected
    assert out.stats.accepted > 30


def test_saving_writes_null_again(endless, tmp_path):
    directory, _ = endless
    config, params = load_huggingface(directory)
    save_huggingface(tmp_path / "again", config, params)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "again" / name).read_text())["eos_token_id"] is None
    assert load_huggingface(tmp_path / "again")[0] == config
    convert(str(directory), str(tmp_path / "run"), "orbax")
    convert(str(tmp_path / "run"), str(tmp_path / "back"), "huggingface", "float16")
    assert load_huggingface(tmp_path / "back")[0].eos_id is None
    if not config.reads_prefix:
        with pytest.raises(CheckpointError, match=r"t5x changes .*eos_id from None to 1"):
            convert(str(directory), str(tmp_path / "t5x"), "t5x")
