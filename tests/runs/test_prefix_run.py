"""``PREFIX``: every output of a run is made to begin with it."""

import json

import specdec
from tests.runs.conftest import TEXTS
from tests.runs.decoding import main

PREFIX = "PREFIX='the cat'"


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
