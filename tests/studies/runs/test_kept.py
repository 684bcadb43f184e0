"""A study's pieces are measured once; a file that is damaged is one clear error."""

import pytest

from specdec.studies.runs.kept import kept_of

SETTINGS = {"seed": 3}


def refuse():
    raise AssertionError("measured again")


def test_what_is_there_is_not_measured_again(tmp_path):
    file = tmp_path / "study.json"
    made = kept_of(file, SETTINGS, lambda: {"alpha": 0.5})
    assert made == {"alpha": 0.5, "settings": SETTINGS}
    assert kept_of(file, SETTINGS, refuse) == made
    assert kept_of(file, {"seed": 4}, lambda: {"alpha": 0.25})["alpha"] == 0.25


@pytest.mark.parametrize("text", ["", "[]", "[" * 200_000, '{"settings": NaN}', "\x00"])
def test_a_damaged_file_is_one_clear_error(tmp_path, text):
    file = tmp_path / "study.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"study\.json is not .* Remove it") as caught:
        kept_of(file, SETTINGS, refuse)
    assert "\n" not in str(caught.value)


def test_a_file_without_settings_is_of_others(tmp_path):
    (tmp_path / "study.json").write_text("{}")
    assert kept_of(tmp_path / "study.json", SETTINGS, lambda: {"a": 1})["a"] == 1
