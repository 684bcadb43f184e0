"""A small Whisper that specdec and transformers read from one directory."""

import pytest
from small_whisper import Both, write_whisper


@pytest.fixture(scope="session")
def directory(once):
    pytest.importorskip("torch", reason="transformers makes the small model with torch")
    return once("whisper", write_whisper)


@pytest.fixture(scope="module")
def both(directory):
    return Both(directory)
