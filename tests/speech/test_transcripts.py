"""Transcripts as SubRip, WebVTT and JSON."""

import json

import numpy as np
import pytest

from specdec.speech.segments import Segment
from specdec.speech.transcript import Transcript

TIMES = {
    0.0: "00:00:00.000", 59.9996: "00:01:00.000", 59.9994: "00:00:59.999", 0.0005: "00:00:00.000",
    3599.9999: "01:00:00.000", 360000.5: "100:00:00.500", 4.1: "00:00:04.100",
}  # fmt: skip


def transcript(*segments):
    found = [
        Segment(start, end, np.array([1, 2]), np.array([-0.123456, -1.0]), text)
        for start, end, text in segments
    ]
    return Transcript("all", found, "en", 0.5, 3.0, [])


@pytest.mark.parametrize("seconds", TIMES)
def test_times(seconds):
    shown = TIMES[seconds]
    found = transcript((seconds, seconds, "a"))
    assert found.as_vtt() == f"WEBVTT\n\n{shown} --> {shown}\na\n\n"
    comma = shown.replace(".", ",")
    assert found.as_srt() == f"1\n{comma} --> {comma}\na\n\n"


def test_texts_of_cues():
    """Neither an arrow nor an empty line nor a tag is taken for what it is in these files."""
    found = transcript((0, 1, "a ---> b"), (1, 2, ""), (2, 3, "x\n\ny <b> & z"))
    head, first, last, end = found.as_srt().split("\n\n")[0:1] + found.as_srt().split("\n\n")
    assert head == first == "1\n00:00:00,000 --> 00:00:01,000\na -→ b"
    assert last == "2\n00:00:02,000 --> 00:00:03,000\nx y <b> & z"
    assert end == ""
    assert found.as_vtt().split("\n\n")[1:] == [
        "00:00:00.000 --> 00:00:01.000\na ---&gt; b",
        "00:00:02.000 --> 00:00:03.000\nx y &lt;b&gt; &amp; z", "",
    ]  # fmt: skip


def test_json():
    found = json.loads(json.dumps(transcript((0.001, 1.0049, "a")).as_json()))
    assert found == {
        "text": "all", "language": "en", "language_probability": 0.5, "duration": 3.0,
        "segments": [
            {"start": 0.0, "end": 1.0, "text": "a", "tokens": [1, 2], "log_probs": [-0.12346, -1.0]}
        ],
    }  # fmt: skip
