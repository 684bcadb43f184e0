"""A study's pieces are measured once; a file that is damaged is one clear error."""

import dataclasses

import pytest

from specdec.reproduce.pieces import Done, carry_out, kept

SETTINGS = {"seed": 3}


def refuse():
    raise AssertionError("measured again")


def test_what_is_there_is_not_measured_again(tmp_path):
    file = tmp_path / "study.json"
    made = kept(file, SETTINGS, lambda: {"alpha": 0.5})
    assert made == Done({"alpha": 0.5, "settings": SETTINGS}, measured=True)
    assert kept(file, SETTINGS, refuse) == dataclasses.replace(made, measured=False)
    assert kept(file, {"seed": 4}, lambda: {"alpha": 0.25}).result["alpha"] == 0.25


@pytest.mark.parametrize("text", ["", "[]", "[" * 200_000, '{"settings": NaN}', "\x00"])
def test_a_damaged_file_is_one_clear_error(tmp_path, text):
    file = tmp_path / "study.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"study\.json is not .* Remove it") as caught:
        kept(file, SETTINGS, refuse)
    assert "\n" not in str(caught.value)


@dataclasses.dataclass
class Constant:
    path: tuple[str, ...]
    value: int

    def do(self, directory):
        return kept(directory / "value.json", SETTINGS, lambda: {"value": self.value})


def test_pieces_are_done_in_order_each_in_its_own_directory(tmp_path):
    pieces = [Constant(("a", "x"), 1), Constant(("a", "y"), 2)]
    found = [(path, result["value"]) for path, result in carry_out(pieces, tmp_path)]
    assert found == [(("a", "x"), 1), (("a", "y"), 2)]
    assert (tmp_path / "a/y/value.json").is_file()
    # Another time they are read.
    changed = [dataclasses.replace(piece, value=9) for piece in pieces]
    assert [result["value"] for _, result in carry_out(changed, tmp_path)] == [1, 2]


def test_two_pieces_of_one_path_are_refused_before_any_is_done(tmp_path):
    pieces = [Constant(("a", "x"), 1), Constant(("a", "x"), 2)]
    with pytest.raises(ValueError, match="a/x is there twice"):
        list(carry_out(pieces, tmp_path))
    assert not list(tmp_path.iterdir())
