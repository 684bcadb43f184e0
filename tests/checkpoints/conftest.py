"""Rows of families.py, made once for the tests of a file."""

import functools
import shutil

import families
import pytest
from safetensors.numpy import load_file, save_file


@pytest.fixture(scope="module")
def made(torch, tmp_path_factory):
    """A function of a row: transformers' model, as it reads the directory, and the directory."""
    pytest.importorskip("transformers")

    @functools.cache
    def made(name):
        model = families.random_model(name)
        directory = families.save(model, name, tmp_path_factory.mktemp("model") / "target")
        return families.read(model, directory), directory

    return made


@pytest.fixture(scope="session")
def rewritten():
    """A function: a copy of a directory whose tensors and config.json are changed."""

    def rewritten(directory, target, change=lambda tensors: tensors, **fields):
        shutil.copytree(directory, target)
        path = target / "model.safetensors"
        save_file(change(load_file(path)), path, {"format": "pt"})
        families.edit(target, **fields)
        return target

    return rewritten
