"""T5X checkpoints: the same numbers as T5X's, whatever the layout, and back."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from flax import serialization
from flax.traverse_util import flatten_dict
from t5x_layouts import (
    NETWORKS,
    laid_out,
    write_current,
    write_flax_optim,
    write_native,
    write_orbax,
    write_single_file,
)
from tiny import TINY, TINY_T5, changed, random_params

import specdec
from specdec.checkpoints import (
    CheckpointError,
    find_checkpoint,
    find_vocabulary,
    is_t5x,
    open_t5x,
    read_config,
    save_huggingface,
    save_t5x,
    t5x_files,
)
from specdec.checkpoints.t5x_files import chunk_shape, kvstore

# Shapes as T5X can write them: it has no other max_distance than 128.
CONFIGS = {
    name: changed(config, relative_attention_max_distance=128) for name, config in TINY.items()
} | {
    "deep": changed(
        TINY["v1.1"], num_encoder_layers=3, num_decoder_layers=2, relative_attention_num_buckets=6
    ),
    # As many layers as the model is wide: which axis of a scanned norm is which, is a convention.
    "square": changed(TINY["v1.1"], d_model=2, num_encoder_layers=2),
    "umt5": TINY_T5["umt5"],
}


@pytest.fixture(scope="module")
def network():
    return network_of("v1.1")


def network_of(name):
    config = CONFIGS[name]
    return config, jax.tree.map(np.asarray, random_params(config, 0))


def inside(write, **options):
    return lambda directory, params: write(directory / "checkpoint_3", params, **options)


LAYOUTS = {
    "native": inside(write_native), "current": inside(write_current),
    "gcs": inside(write_native, driver="gcs"), "single file": inside(write_single_file),
    "flax optim": inside(write_flax_optim),
    "orbax": lambda directory, params: write_orbax(directory, params, 3),
    "orbax without ocdbt": lambda *given: write_orbax(*given, 3, use_ocdbt=False),
}  # fmt: skip
native = LAYOUTS["native"]


def assert_same(opened, network):
    config, params = opened
    assert config == network[0]
    assert jax.tree.structure(params) == jax.tree.structure(network[1])
    jax.tree.map(np.testing.assert_array_equal, params, network[1])


def test_a_checkpoint_of_t5x_itself(data_dir):
    directory = data_dir / "t5x_tiny"
    if not directory.is_dir():
        pytest.skip(f"{data_dir} has no t5x_tiny, a checkpoint that T5X wrote")
    config, params = open_t5x(directory / "checkpoint_3")
    assert (config.vocab_size, config.d_model, config.d_ff, config.head_dim) == (32128, 4, 8, 2)
    assert config.decoder.gated
    assert not config.tied_logits
    assert all(np.abs(np.asarray(array)).max() > 0 for array in flatten(params).values())


def flatten(tree):
    return flatten_dict(tree, sep="/")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_network(layout, network, tmp_path):
    LAYOUTS[layout](tmp_path, network[1])
    assert is_t5x(tmp_path)
    assert is_t5x(tmp_path / "checkpoint_3")
    assert_same(open_t5x(tmp_path), network)
    assert_same(open_t5x(tmp_path / "checkpoint_3"), network)


@pytest.mark.parametrize(
    ("layout", "name"), [("single file", "square"), ("current", "deep"), ("orbax", "umt5")]
)
@pytest.mark.parametrize("written_by", NETWORKS[1:])
def test_every_network_of_t5x_is_read_as_ours(layout, name, written_by, tmp_path):
    """In the dtype that it is stored in, or widened."""
    config, params = network_of(name)
    halves = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    LAYOUTS[layout](tmp_path, laid_out(halves, config, written_by))
    assert_same(open_t5x(tmp_path, None), (config, halves))
    widened = jax.tree.map(lambda a: a.astype(np.float32), halves)
    assert_same(open_t5x(tmp_path), (config, widened))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_part_is_read_that_is_asked_for(network, tmp_path):
    """As devices read their shares, whatever axes heads and layers have."""
    config, params = network_of("deep")
    tree = laid_out(params, config, network)
    write_native(tmp_path / "checkpoint_3", tree, split=True)
    found = flatten(open_t5x(tmp_path)[1])
    for part in ("attention/query", "attention/out", "mlp/wo"):
        name = f"encoder/layers_1/{part}/kernel"
        expected = flatten(params)[name]
        for index in (
            (slice(3, 9), slice(12, 16)), (slice(5, 16), slice(2, 14)), (slice(None), slice(7, 9)),
            (slice(7, 9),), (slice(1, 14, 3), slice(1, 15, 2)), (slice(4, 4), slice(None)), (),
        ):  # fmt: skip
            np.testing.assert_array_equal(found[name].read(index), expected[index])


@pytest.mark.parametrize("layout", ["native", "orbax without ocdbt"])
def test_optimizer_arrays_are_not_opened(layout, network, tmp_path):
    LAYOUTS[layout](tmp_path, network[1])
    folders = list((tmp_path / "checkpoint_3").glob("**/*state.param_states*"))
    assert len(folders) > 20
    for i, folder in enumerate(folders):
        shutil.rmtree(folder)
        if i % 2:
            folder.mkdir()
            (folder / ".zarray").write_text("garbage")
    assert_same(open_t5x(tmp_path), network)


def test_the_latest_step_unless_one_is_asked_for(network, tmp_path):
    config, params = network
    doubled = jax.tree.map(lambda a: 2 * a, params)
    for step, each in ((9, params), (10, doubled)):
        save_t5x(tmp_path, config, each, step)
    (tmp_path / "checkpoint_11.tmp-1234").mkdir()  # T5X's, while it writes.
    assert_same(open_t5x(tmp_path), (config, doubled))
    assert_same(open_t5x(tmp_path, step=9), network)
    assert_same(open_t5x(f"{tmp_path}/checkpoint_9/"), network)
    assert find_checkpoint(tmp_path) == (str(tmp_path / "checkpoint_10"), 10)


def test_what_is_written_opens_as_t5x_opens_it(network, tmp_path):
    config, params = network
    save_t5x(tmp_path, config, params, 7)
    directory = tmp_path / "checkpoint_7"
    contents = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    assert contents.keys() == {"version", "optimizer"}
    assert contents["version"] == 3
    assert contents["optimizer"].keys() == {"target", "state"}
    assert contents["optimizer"]["state"] == {"step": 7}
    specs = flatten_dict(
        contents["optimizer"]["target"],
        sep="/",
        is_leaf=lambda _, node: node.keys() >= {"driver", "kvstore", "metadata"},
    )
    for path, array in flatten(params).items():
        spec = ts.Spec(specs[path]).to_json()
        del spec["metadata"]["chunks"], spec["metadata"]["compressor"]
        assert not os.path.isabs(spec["kvstore"]["path"])
        spec["kvstore"]["path"] = os.path.join(directory, spec["kvstore"]["path"])
        np.testing.assert_array_equal(ts.open(spec, open=True).result().read().result(), array)
        folder = directory / f"target.{path.replace('/', '.')}"
        metadata = json.loads((folder / ".zarray").read_text())
        assert metadata["compressor"] == {"id": "gzip", "level": 1}


def test_chunks_are_t5x_s():
    assert chunk_shape((32128, 8), 2**24) == [32128, 8]
    assert chunk_shape((32128, 4096), 2**24) == [4016, 4096]  # 32128 / 8.
    assert chunk_shape((4096, 32128), 2**24) == [4096, 4016]
    assert chunk_shape((7, 11), 10) == [7, 1]
    assert chunk_shape((16, 16), 64) == [8, 8]
    assert chunk_shape((), 1) == []


def test_google_cloud_storage_is_read_as_directories_are(tmp_path, monkeypatch):
    """All goes through TensorStore: with files in the bucket's place it is the same."""
    spec = {"driver": "gcs", "bucket": "b", "path": "a/checkpoint_3/target.x/"}
    assert kvstore("gs://b/a/checkpoint_3", "target.x/") == spec
    assert kvstore("gs://b") == {"driver": "gcs", "bucket": "b", "path": ""}
    assert is_t5x("gs://b/a")
    assert find_vocabulary("gs://b/a") is None
    config, params = network_of("v1.1")
    for step in (2, 10):
        write_native(tmp_path / f"checkpoint_{step}", params)
    monkeypatch.setattr(
        t5x_files, "kvstore",
        lambda location, path="": kvstore(location.replace("gs://b", str(tmp_path)), path),
    )  # fmt: skip
    assert_same(open_t5x("gs://b/", step=10), (config, params))
    with pytest.raises(CheckpointError, match=r"has no step 3; the steps there are: 2, 10\."):
        open_t5x("gs://b", step=3)


def test_load_pair_opens_t5x_directories(tmp_path):
    """With the parameters of the same model in another directory."""
    config, params = network_of("v1.1")
    native(tmp_path / "t5x", params)
    save_huggingface(tmp_path / "hf", config, params)
    (tmp_path / "hf" / "checkpoint_7").mkdir()
    assert read_config(tmp_path / "t5x") == config
    assert not is_t5x(tmp_path / "hf")
    ours, theirs = (
        specdec.load_pair(target=tmp_path / name, draft=specdec.Copying()) for name in ("t5x", "hf")
    )
    assert ours.vocabulary is None
    jax.tree.map(np.testing.assert_array_equal, ours.target.params, theirs.target.params)


def test_the_vocabulary_is_in_the_directory_or_above(tmp_path):
    _, params = network_of("v1.1")
    native(tmp_path / "model", params)
    step = tmp_path / "model" / "checkpoint_3"
    assert find_vocabulary(step) is None
    above = tmp_path / "model" / "spiece.model"
    above.touch()
    assert find_vocabulary(step) == find_vocabulary(tmp_path / "model") == above
    assert find_vocabulary(str(step)) == above
    (step / "spiece.model").touch()
    assert find_vocabulary(step) == step / "spiece.model"
