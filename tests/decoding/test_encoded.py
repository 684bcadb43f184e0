"""Encodings given in place of texts; and drafts that share their target's encoder."""

import functools

import jax
import numpy as np
import pytest
from slow import slow
from tiny import TINY, TINY_GPT, TINY_WHISPER, changed, random_params, sounds

import specdec
from specdec.checkpoints import loading, save_huggingface

CONFIGS = {"t5": TINY["v1.1"], "whisper": TINY_WHISPER["whisper"]}
SHAPE = CONFIGS["whisper"].input_shape
# Several end an output, or rows would not end apart.
CONFIGS = {name: changed(config, more_eos_ids=(7, 11)) for name, config in CONFIGS.items()}
DRAFTS = CONFIGS | {"whisper": changed(CONFIGS["whisper"], num_decoder_layers=1)}
GIVEN = {"t5": [[5, 9, 3, 7, 1], [4, 1], [12, 8, 8, 2, 6, 1], [9, 9, 4, 1], [6, 14, 1]]}
GIVEN["whisper"] = list(sounds(5, SHAPE))
CHAIN, PLAIN = {"gamma": 3}, {"method": "autoregressive"}
FAMILIES = pytest.mark.parametrize("family", CONFIGS)


def near(params):
    """Weights with noise."""
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda a: np.asarray(a + 0.1 * np.std(a) * generator.normal(size=a.shape), np.float32),
        params,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A target of each family, a draft with its encoder, and one with another encoder."""
    root = tmp_path_factory.mktemp("encoded")
    for family, config in CONFIGS.items():
        params = jax.device_get(random_params(config, 3))
        noisy = near(params)
        draft = params | {"decoder": noisy["decoder"]}
        for layer in range(DRAFTS[family].num_decoder_layers, config.num_decoder_layers):
            draft["decoder"].pop(f"layers_{layer}")
        save_huggingface(root / family, config, params)
        save_huggingface(root / f"{family} shared", DRAFTS[family], draft)
        other = draft | {"encoder": noisy["encoder"]}
        save_huggingface(root / f"{family} other", DRAFTS[family], other)
    return root


@pytest.fixture(scope="module")
def pair_of(root):
    """A function of a family and a draft, by its name or as a spec."""

    @functools.cache
    def pair_of(family, draft):
        draft = root / f"{family} {draft}" if isinstance(draft, str) else draft
        return specdec.load_pair(target=root / family, draft=draft)

    return pair_of


def encoded(pair, given):
    """The target's encoding of each text or sound alone."""
    model, found = pair.target.model, []
    for each in given:
        prompt = model.prompt(np.asarray(each)[None], np.array([len(each)]))
        encoding = model.encode(pair.target.params, prompt)
        found.append(np.asarray(encoding.output[0, : int(encoding.lengths[0])]))
    return found


def generated(pair, texts=(), **options):
    fixed = {"max_decode_len": 20, "batch_size": 5, "log_probs": True}
    return pair.generate(texts, **fixed | options)


def tokens_of(out):
    return [row.tolist() for row in out.tokens]


def assert_same(found, expected):
    assert tokens_of(found) == tokens_of(expected)
    for ours, theirs in zip(found.log_probs, expected.log_probs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@FAMILIES
def test_encodings_are_their_texts(pair_of, family):
    """Without texts, if nothing else reads them; and with them, for a draft that does."""
    pair, given = pair_of(family, specdec.Quantized()), GIVEN[family]
    states = encoded(pair, given)
    assert states[0].shape[1] == CONFIGS[family].d_model
    for way in (PLAIN, CHAIN):
        expected = generated(pair, given, **way)
        assert_same(generated(pair, encoded=states, **way), expected)
    assert len(set(map(tuple, tokens_of(expected)))) > 3, "texts should differ"
    assert expected.stats.accepted > 0
    turned = generated(pair, encoded=states[::-1], **CHAIN)
    assert tokens_of(turned) == tokens_of(expected)[::-1]
    other = pair_of(family, "other")
    both = generated(other, given, encoded=states, **CHAIN)
    alone = generated(other, given, **CHAIN)
    assert_same(both, alone)
    assert both.stats.accepted == alone.stats.accepted > 0
    turned = generated(other, given, encoded=states[::-1], **CHAIN)
    assert tokens_of(turned) == tokens_of(expected)[::-1], "the target reads no text"


@FAMILIES
def test_rows_that_are_refilled_are_those_alone(pair_of, family):
    """More rows than a batch has, of features and of encodings."""
    pair, given = pair_of(family, "shared"), GIVEN[family]
    alone = [tokens_of(generated(pair, [each], batch_size=1, **CHAIN))[0] for each in given]
    assert len(set(map(len, alone))) > 1, "rows should end apart"
    assert tokens_of(generated(pair, given, batch_size=2, **CHAIN)) == alone
    of_states = generated(pair, given, encoded=encoded(pair, given), batch_size=2, **CHAIN)
    assert tokens_of(of_states) == alone


@pytest.mark.parametrize("family", ["whisper", slow("t5")])
def test_a_draft_with_its_targets_encoder_shares_it(root, monkeypatch, family):
    """It makes the guesses that it makes with an encoder of its own, and needs no texts."""
    # As on a GPU, where a draft's embedding, which a T5's encoder reads, has no fewer bits.
    monkeypatch.setattr(loading, "draft_kernel_dtype", lambda dtype: None)
    files = {"target": root / family, "draft": root / f"{family} shared"}
    pair, given = specdec.load_pair(**files), GIVEN[family]
    assert pair.draft.model.params.encoder is None
    found = generated(pair, given, trace=True, **CHAIN)
    assert_same(generated(pair, encoded=encoded(pair, given), **CHAIN), found)
    monkeypatch.setattr(loading, "_sharing_encoder", lambda target, draft: draft)
    own = specdec.load_pair(**files)
    assert own.draft.model.params.encoder is not None
    expected = generated(own, given, trace=True, **CHAIN)
    assert_same(found, expected)
    assert found.traces == expected.traces
    assert 0 < found.stats.accepted < found.stats.proposed


@FAMILIES
def test_another_encoder_is_kept(pair_of, family):
    assert pair_of(family, "other").draft.model.params.encoder is not None


@pytest.mark.parametrize(
    ("draft", "way"),
    [
        (lambda path: specdec.Hierarchical(path, specdec.Copying()), CHAIN),
        (lambda path: specdec.Merged((path, specdec.Copying())), {"tree": (2, 1)}),
    ],
)
def test_drafts_of_drafts_share_it_too(pair_of, root, draft, way):
    pair = pair_of("whisper", draft(str(root / "whisper shared")))
    given = GIVEN["whisper"]
    expected = generated(pair, given, **PLAIN)
    found = generated(pair, encoded=encoded(pair, given), **way)
    assert_same(found, expected)
    assert found.stats.accepted > 0
    beams = {"beam": specdec.BeamConfig(2, "huggingface"), "method": "beam"}
    assert tokens_of(generated(pair, encoded=encoded(pair, given), **beams)) == tokens_of(
        generated(pair, given, **beams)
    )


def states(width, count=2):
    return [np.ones((4, width), np.float32)] * count


WRONG = {
    "width": ({"encoded": states(15)}, r"encoded 0 has shape \(4, 15\); .* states of width 16"),
    "no states": ({"encoded": [np.ones((0, 16))]}, r"encoded 0 has shape \(0, 16\)"),
    "tokens": ({"encoded": [[5, 6, 1]]}, r"encoded 0 has shape \(3,\)"),
    "count": ({"texts": [[5, 1]], "encoded": states(16)}, "2 entries for 1 texts: give one for"),
    "NaN": ({"encoded": [np.full((4, 16), np.nan)]}, "encoded 0 has NaN or infinity"),
    "auto": ({"encoded": states(16), "gamma": "auto"}, '"auto" decodes some of the texts: give'),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_clear_error(pair_of, case):
    options, words = WRONG[case]
    with pytest.raises(ValueError, match=words):
        generated(pair_of("t5", specdec.Copying()), **options)


@pytest.mark.parametrize(
    ("draft", "way"),
    [
        (lambda path: path, CHAIN),
        (lambda path: specdec.Hierarchical(path, specdec.Copying()), CHAIN),
        (lambda path: specdec.Merged((specdec.Quantized(), path)), {"tree": (2, 1)}),
    ],
)
def test_a_draft_that_reads_needs_texts(root, draft, way):
    pair = specdec.load_pair(target=root / "t5", draft=draft(str(root / "t5 other")))
    with pytest.raises(ValueError, match="draft has an encoder of its own: give texts beside"):
        generated(pair, encoded=states(16), **way)
    assert len(tokens_of(generated(pair, encoded=states(16), **PLAIN))) == 2


def test_a_decoder_alone_has_no_encodings(tmp_path):
    config = TINY_GPT["gpt"]
    save_huggingface(tmp_path / "gpt", config, jax.device_get(random_params(config, 0)))
    gpt = specdec.load_pair(target=tmp_path / "gpt", draft=specdec.Copying())
    with pytest.raises(ValueError, match="an encoder made, and this model is decoder-only"):
        generated(gpt, encoded=states(16))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a", r"text 0 must be features of sound, an array of 12 x 5 \(frames x mel bins\)"),
        ([5, 6, 1], r"text 0 must be features of sound"),
        (np.zeros((12, 4)), r"text 0 has 4 mel bins, and the model reads 5"),
        (np.zeros((10, 5)), r"text 0 has 10 frames, and the model reads 12"),
        (np.full((12, 5), np.inf), r"text 0 has NaN or infinity"),
    ],
    ids=range(5),
)
def test_features_that_are_none(pair_of, given, words):
    with pytest.raises(ValueError, match=words):
        generated(pair_of("whisper", "shared"), [given])


def test_a_draft_of_other_features_is_refused(root, tmp_path):
    config = changed(DRAFTS["whisper"], features=4)
    save_huggingface(tmp_path / "it", config, jax.device_get(random_params(config, 0)))
    with pytest.raises(ValueError, match=r"reads 12 frames of 5 mel bins, the draft .* of 4 mel"):
        specdec.load_pair(target=root / "whisper", draft=tmp_path / "it")
    with pytest.raises(ValueError, match=r"target .* reads tokens, the draft .* 12 frames of 5"):
        specdec.load_pair(target=root / "t5", draft=root / "whisper shared")


def test_what_has_no_vocabulary_does_not_transcribe(pair_of):
    for family, words in (("t5", "reads texts and does not listen"), ("whisper", "no vocabulary")):
        with pytest.raises(ValueError, match=words):
            pair_of(family, "shared").transcribe(np.zeros(100), 16000)
