"""What loading and saving T5X checkpoints refuse, and in which words."""

import gzip
import re
import shutil

import jax
import numpy as np
import pytest
from flax import serialization
from flax.traverse_util import flatten_dict
from t5x_layouts import (
    NETWORKS,
    laid_out,
    write_native,
    write_single_file,
)

from specdec.checkpoints import CheckpointError, open_checkpoint, open_t5x, save_t5x
from specdec.models.t5.config import T5Config
from specdec.models.transformer.network import init_params

CONFIG = T5Config(40, 8, 2, 1, 2, 4, 16)
QUERY = "encoder/layers_0/attention/query/kernel"
BIAS = "relpos_bias/rel_embedding"
DECODER_QUERY = "decoder/layers_0/self_attention/query/kernel"


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(np.asarray, init_params(CONFIG, jax.random.key(0)))


@pytest.fixture
def checkpoint(tmp_path, params):
    """A good checkpoint, for each test to damage."""
    write_native(tmp_path / "model" / "checkpoint_3", params)
    return tmp_path / "model" / "checkpoint_3"


def refusal(source, **kwargs):
    """The one line that opening and reading everything refuses with."""
    with pytest.raises(CheckpointError) as caught:
        jax.tree.map(np.asarray, open_t5x(source, **kwargs)[1])
    message = str(caught.value)
    assert "\n" not in message
    return message


def array_of(checkpoint, path=QUERY):
    return checkpoint / f"target.{path.replace('/', '.')}"


def replaced(tree, path, value):
    """A copy of a nested dict with one leaf replaced, or dropped if ``value`` is None."""
    first, *rest = path.split("/")
    if rest:
        return {**tree, first: replaced(tree.get(first, {}), "/".join(rest), value)}
    return {k: v for k, v in {**tree, first: value}.items() if v is not None}


def edit(checkpoint, path, value):
    """Replaces or drops what the msgpack file holds at a path under "optimizer"."""
    file = checkpoint / "checkpoint"
    contents = serialization.msgpack_restore(file.read_bytes())
    contents = replaced(contents, f"optimizer/{path}", value)
    file.write_bytes(serialization.msgpack_serialize(contents))


def remove(checkpoint):
    shutil.rmtree(array_of(checkpoint))


def chunk(change):
    def changed(checkpoint):
        path = array_of(checkpoint) / "0.0"
        path.write_bytes(change(path.read_bytes()))

    return changed


def metadata(change):
    def changed(checkpoint):
        path = array_of(checkpoint) / ".zarray"
        path.write_text(change(path.read_text()))

    return changed


def edited(path, value):
    return lambda checkpoint: edit(checkpoint, path, value)


SCALE = "decoder/decoder_norm/scale"
DAMAGES = {
    "no array": (remove, f"checkpoint_3: {QUERY} cannot be read.*missing.*copy or download"),
    "no chunk's content": (chunk(lambda data: b""), f"{QUERY}.*truncated"),
    "a chunk cut": (chunk(lambda data: data[:40]), f"{QUERY}.*truncated"),
    "a chunk of another size": (chunk(lambda data: gzip.compress(bytes(8))), QUERY),
    "metadata cut": (metadata(lambda text: text[:9]), QUERY),
    "metadata nested without end": (metadata(lambda text: "[" * 100_000), QUERY),
    "metadata of another dtype": (metadata(lambda text: text.replace("<f4", "<i4")), QUERY),
    "no query of a decoder": (
        edited(f"target/{DECODER_QUERY}", None), f"is missing parameter {DECODER_QUERY}; .*only T5s"
    ),
    "no query": (edited(f"target/{QUERY}", None), f"missing parameter {QUERY}; .*belong together"),
    "another size": (
        edited(f"target/{SCALE}", np.ones(7, "f4")), rf"{SCALE} has shape \(7,\).*\(8,\)"
    ),
    "no T5's size": (
        edited(f"target/decoder/{BIAS}", np.ones((2, 5), "f4")),
        "shapes that no T5 has.*buckets must be even",
    ),
    "no array described": (
        edited(f"target/{QUERY}", {"driver": "zarr", "kvstore": {"driver": "file"}}),
        f"{QUERY} is neither an array",
    ),
    "integers": (
        edited(f"target/{SCALE}", np.ones(8, np.uint16)),
        f"{SCALE} is stored as uint16.*before version 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged(checkpoint, kind):
    damage, words = DAMAGES[kind]
    damage(checkpoint)
    assert re.search(words, refusal(checkpoint))


def test_an_array_is_of_another_shape_than_listed(checkpoint):
    shutil.rmtree(array_of(checkpoint))
    shutil.copytree(array_of(checkpoint, "encoder/layers_0/mlp/wo/kernel"), array_of(checkpoint))
    message = refusal(checkpoint)
    found, listed = "float32 (16, 8)", "float32 (8, 8)"
    assert f"{QUERY} is {found} in its files, but the checkpoint lists {listed}" in message


def test_msgpack_is_truncated(checkpoint, params, tmp_path):
    single = tmp_path / "single" / "checkpoint_3"
    write_single_file(single, params)
    for file, source in ((checkpoint / "checkpoint", checkpoint), (single, single)):
        whole = file.read_bytes()
        for size in (len(whole) // 2, 0):
            file.write_bytes(whole[:size])
            assert re.search(f"{file} is truncated.*copy or download", refusal(source))


def test_no_such_step(checkpoint):
    shutil.copytree(checkpoint, checkpoint.parent / "checkpoint_12")
    message = refusal(checkpoint.parent, step=5)
    assert message == f"{checkpoint.parent} has no step 5; the steps there are: 3, 12."
    assert "has no step 5; the steps there are: 3." in refusal(checkpoint, step=5)


def test_no_checkpoint(tmp_path):
    assert "holds no T5X checkpoint; pass a directory" in refusal(tmp_path)
    assert "holds no T5X checkpoint" in refusal(tmp_path / "absent")
    assert "there are: none" in refusal(tmp_path, step=3)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_unknown_parameters(checkpoint):
    edit(checkpoint, "target/encoder/layers_0/mlp/gate/kernel", np.ones((8, 2), np.float32))
    edit(checkpoint, "target/encoder/adapter/scale", np.ones(8, np.float32))
    message = refusal(checkpoint)
    assert "has the unexpected parameter encoder/adapter/scale and 1 more" in message


def test_not_finite(tmp_path, params):
    bad = np.array(params["encoder"]["layers_0"]["attention"]["query"]["kernel"])
    bad[3, 3] = 1e6
    write_native(tmp_path / "large" / "checkpoint_3", replaced(params, QUERY, bad))
    assert "infinite values in float16" in refusal(tmp_path / "large", dtype="float16")
    bad[3, 3] = np.nan
    write_native(tmp_path / "checkpoint_3", replaced(params, QUERY, bad))
    message = refusal(tmp_path)
    assert f"{QUERY} holds NaN or infinite values in float32" in message
    with pytest.raises(CheckpointError, match=f"params: {QUERY} holds NaN"):
        save_t5x(tmp_path / "out", CONFIG, replaced(params, QUERY, bad), 3)
    assert not any((tmp_path / "out").iterdir())


def test_saving_what_does_not_fit(checkpoint, tmp_path, params):
    with pytest.raises(CheckpointError, match="checkpoint_3 exists and is not an empty directory"):
        save_t5x(checkpoint.parent, CONFIG, params, 3)
    tmp_path = tmp_path / "new"
    for path, value, problem in (
        (QUERY, None, f"params is missing parameter {QUERY}"),
        ("encoder/more", np.ones(8), "params has the unexpected parameter encoder/more"),
        (QUERY, np.ones((8, 9)), rf"params: {QUERY} has shape \(8, 9\), but the config asks"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            save_t5x(tmp_path, CONFIG, replaced(params, path, value), 3)
    with pytest.raises(CheckpointError, match="dtype must be one of"):
        save_t5x(tmp_path, CONFIG, params, 3, "int8")
    with pytest.raises(CheckpointError, match="write to a local directory and copy it"):
        save_t5x("gs://bucket/model", CONFIG, params, 3)
    assert not list(tmp_path.glob("*"))


def test_what_was_interrupted_is_not_seen(tmp_path, params):
    class Interrupted:
        shape = (8,)

        def __array__(self, dtype=None, copy=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_t5x(tmp_path, CONFIG, replaced(params, "decoder/decoder_norm/scale", Interrupted()), 3)
    assert not any(tmp_path.iterdir())


def unscanned(path):
    return re.sub(r"(encoder|decoder)/\1/", r"\1/layers_0/", path)


@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_with_more_or_fewer_axes(network, tmp_path, params):
    """Each with one of four faults."""
    tree = laid_out(params, CONFIG, network)
    for number, (path, array) in enumerate(flatten_dict(tree, sep="/").items()):
        bad = (array.ravel()[0], array[..., 0], array[..., None, None], array[:0])[number % 4]
        write_single_file(tmp_path / "checkpoint_3", replaced(tree, path, np.asarray(bad)))
        message = refusal(tmp_path / "checkpoint_3")
        assert str(tmp_path / "checkpoint_3") in message
        if unscanned(path) != DECODER_QUERY:  # The width of heads is taken from it.
            assert "/".join(path.split("/")[-2:]) in message
            assert "has shape" in message


@pytest.mark.parametrize("network", NETWORKS[1:])
def test_heads_of_another_number_or_width(network, tmp_path, params):
    """Joined they would have the right shape."""
    tree = laid_out(params, CONFIG, network)
    layers = "decoder/decoder" if network == "scanned" else "decoder/layers_0"
    for name, shape in (("value", (8, 4, 2)), ("out", (2, 5, 8))):
        path = f"{layers}/encoder_decoder_attention/{name}/kernel"
        bad = np.ones(shape, np.float32)
        bad = np.expand_dims(bad, 1) if network == "scanned" else bad
        write_native(tmp_path / name / "checkpoint_3", replaced(tree, path, bad))
        message = refusal(tmp_path / name)
        assert unscanned(path) in message
        assert "but the rest of the network asks for" in message


def test_no_file_that_lists_the_arrays(checkpoint):
    (checkpoint / "checkpoint").unlink()
    expected = f"{checkpoint} has no file named checkpoint; copy or download"
    assert expected in refusal(checkpoint.parent)
    with pytest.raises(CheckpointError, match=expected):
        open_checkpoint(checkpoint)
