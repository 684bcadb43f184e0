"""Checkpoints on their way to the devices that decode with them."""

import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from tiny import TINY, random_params

from specdec import DeviceMesh
from specdec.checkpoints import open_checkpoint, save_huggingface, save_t5x
from specdec.checkpoints.loading import load_model, load_packed
from specdec.checkpoints.parameters import StoredArray


@pytest.fixture
def checkpoint(request, tmp_path):
    config = TINY["v1.1"]
    params = random_params(config, 0)
    if request.param == "huggingface":
        save_huggingface(tmp_path / "model", config, params)
        return tmp_path / "model", params
    save_t5x(tmp_path, config, params, step=1)
    return tmp_path, params


@pytest.mark.parametrize(
    ("checkpoint", "mesh"),
    [("huggingface", None), ("t5x", DeviceMesh(1, 1))],
    indirect=["checkpoint"],
)
def test_parameters_are_read_once_and_those_of_a_layer_together(checkpoint, mesh, monkeypatch):
    directory, params = checkpoint
    layer = 4 * sum(leaf.size for leaf in jax.tree.leaves(params["decoder"]["layers_0"]))
    reads, read_last = [], []

    def counting(read):
        def counted(self, *args, **kwargs):
            array = read(self, *args, **kwargs)
            assert array.dtype == jnp.float32, "rounded only when it is packed"
            read_last.append(weakref.ref(array))
            kept = [each().nbytes for each in read_last if each() is not None]
            assert sum(kept) < layer, "what was read is kept beside its copy"
            reads.append(array.nbytes)
            return array

        return counted

    monkeypatch.setattr(StoredArray, "read", counting(StoredArray.read))
    loaded = load_model(str(directory), "bfloat16", partitioning=mesh and mesh.target)
    assert len(reads) == len(jax.tree.leaves(params))
    assert sum(reads) == sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    kernels = jax.tree.leaves(loaded.model.kernels(loaded.params))
    assert {kernel.dtype for kernel in kernels} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("int8", [False, True])
def test_what_is_too_large_for_fewer_bits_keeps_its_own(int8):
    """And nothing else that was asked for is forgotten."""
    config = TINY["v1.1"]
    params = jax.tree.map(np.array, random_params(config, 0))
    params["decoder"]["decoder_norm"]["scale"][0] = 1e5  # Beyond float16.
    params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"][0, 0] = 1e5
    found = load_packed(config, params, "test", "float16", int8=int8)
    expected = load_packed(config, params, "test", int8=int8)
    assert jax.tree.structure(found.params) == jax.tree.structure(expected.params)
    for ours, theirs in zip(*map(jax.tree.leaves, (found.params, expected.params)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(found.params)}
    assert (jnp.dtype("int8") in dtypes) == int8
    assert jnp.dtype("float16") not in dtypes


def test_a_checkpoint_is_one_target_in_bfloat16(tmp_path):
    """Packed from float32, as inside T5X, and loaded: the same numbers."""
    params = random_params(TINY["v1.1"], 0)
    save_huggingface(tmp_path, TINY["v1.1"], params)
    loaded = load_model(str(tmp_path), "bfloat16")
    expected = loaded.model.pack(params)
    for ours, theirs in zip(*map(jax.tree.leaves, (loaded.params, expected)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.astype("float32"), theirs.astype("float32"))


def test_a_factor_of_the_head_is_not_rounded_to_16_bits(tmp_path):
    """A head that is separate and scaled: the one kernel that something is multiplied into."""
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, random_params(config, 0), None, "float16")
    described = json.loads((tmp_path / "config.json").read_text())
    described["scale_decoder_outputs"] = True
    (tmp_path / "config.json").write_text(json.dumps(described))
    narrow = load_model(str(tmp_path), "float32")
    wide = load_packed(*open_checkpoint(tmp_path), "test")
    assert narrow.params.logits.dtype == jnp.float32
    assert narrow.params.embedding.dtype == jnp.float16
    np.testing.assert_array_equal(narrow.params.logits, wide.params.logits)


def test_memory_is_that_of_the_file(tmp_path):
    config = TINY["v1.1"]
    save_huggingface(tmp_path, config, random_params(config, 0), None, "float16")
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(load_model(str(tmp_path), "float32").params))
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        names = file.keys()
        stored = sum(file.get_tensor(name).nbytes for name in names)
    assert stored <= held <= 1.2 * stored
