"""``PREFIX``: every output of a run is made to begin with it."""

import json

import pytest

import specdec
from tests.runs.conftest import TEXTS
from tests.runs.decoding import main, read

PREFIX = "PREFIX='the cat'"


@pytest.mark.slow
def test_a_run_with_a_prefix(tiny, tmp_path, capsys):
    """Its rows are those of generate; it is compared with plain decoding, timed, and continued."""
    assert main(tiny, tmp_path, PREFIX, "TIMING_EXAMPLES=2", "BATCH_SIZE=2") == 0
    results, rows = read(tmp_path)
    pair = specdec.load_pair(target=tiny.target, draft=tiny.draft)
    for prefix, same in (("the cat", True), (None, False)):
        out = pair.generate(TEXTS, prefix=prefix, gamma=2, max_decode_len=12)
        found = {row["id"]: row["tokens"] for row in rows}
        expected = {i: tokens.tolist() for i, tokens in enumerate(out.tokens)}
        assert (found == expected) == same
    assert results["greedy_mismatches"] == 0
    assert results["measured_speedup"] > 0

    decodes = tmp_path / "decodes.jsonl"
    whole = decodes.read_bytes()
    decodes.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert main(tiny, tmp_path, PREFIX, "TIMING_EXAMPLES=2", "BATCH_SIZE=2") == 0
    assert decodes.read_bytes() == whole
    capsys.readouterr()
    assert main(tiny, tmp_path, "PREFIX='a dog'", "TIMING_EXAMPLES=2", "BATCH_SIZE=2") == 2
    assert "holds the decodes of another configuration" in capsys.readouterr().err


def test_a_prefix_of_token_ids_and_one_that_is_too_long(tiny, tmp_path, capsys):
    pair = specdec.load_pair(target=tiny.target, draft=tiny.draft)
    ids = pair.vocabulary.encode("the cat")
    for name, binding in (("ids", f"PREFIX={ids}"), ("text", PREFIX)):
        assert main(tiny, tmp_path / name, binding) == 0
    written = [(tmp_path / name / "decodes.jsonl").read_bytes() for name in ("ids", "text")]
    assert written[0] == written[1]
    assert len(written[0].splitlines()) == len(TEXTS)
    assert json.loads(written[0].splitlines()[0])["tokens"]

    capsys.readouterr()
    long = f"PREFIX={' '.join(TEXTS * 3)!r}"
    assert main(tiny, tmp_path / "new", long) == 2
    assert "prefix has " in (error := capsys.readouterr().err)
    assert "more than max_input_len = 16; shorten it" in error
    assert not (tmp_path / "new").exists()
