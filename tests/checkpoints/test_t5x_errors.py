"""What loading and saving T5X checkpoints refuse, and in which words."""

import gzip
import json
import re
import shutil

import jax
import ml_dtypes
import msgpack
import numpy as np
import pytest
from flax import serialization
from flax.traverse_util import flatten_dict
from t5x_layouts import (
    NETWORKS,
    laid_out,
    write_current,
    write_native,
    write_orbax,
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


def test_an_array_s_directory_is_missing(checkpoint):
    shutil.rmtree(array_of(checkpoint))
    message = refusal(checkpoint)
    assert f"{checkpoint}: {QUERY} cannot be read" in message
    assert "missing" in message
    assert "copy or download" in message


@pytest.mark.parametrize("kept", [0, 40])
def test_a_chunk_is_truncated(kept, checkpoint):
    chunk = array_of(checkpoint) / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:kept])
    message = refusal(checkpoint)
    assert QUERY in message
    assert "truncated" in message


def test_a_chunk_is_of_another_size(checkpoint):
    (array_of(checkpoint) / "0.0").write_bytes(gzip.compress(bytes(8)))
    assert QUERY in refusal(checkpoint)


def test_an_array_is_of_another_shape_than_listed(checkpoint):
    shutil.rmtree(array_of(checkpoint))
    shutil.copytree(array_of(checkpoint, "encoder/layers_0/mlp/wo/kernel"), array_of(checkpoint))
    message = refusal(checkpoint)
    found, listed = "float32 (16, 8)", "float32 (8, 8)"
    assert f"{QUERY} is {found} in its files, but the checkpoint lists {listed}" in message


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("single", [False, True])
def test_msgpack_is_truncated(share, single, checkpoint, params):
    file = checkpoint / "checkpoint"
    if single:
        shutil.rmtree(checkpoint)
        write_single_file(checkpoint, params)
        file = checkpoint
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    message = refusal(checkpoint)
    assert f"{file} is truncated" in message
    assert "copy or download" in message


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


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        (DECODER_QUERY, "only T5s"),
        (QUERY, "belong together"),
    ],
)
def test_a_parameter_is_missing(path, advice, checkpoint):
    edit(checkpoint, f"target/{path}", None)
    message = refusal(checkpoint)
    assert message.startswith(f"{checkpoint} is missing parameter {path}; ")
    assert advice in message


def test_unknown_parameters(checkpoint):
    edit(checkpoint, "target/encoder/layers_0/mlp/gate/kernel", np.ones((8, 2), np.float32))
    edit(checkpoint, "target/encoder/adapter/scale", np.ones(8, np.float32))
    message = refusal(checkpoint)
    assert "has the unexpected parameter encoder/adapter/scale and 1 more" in message


def test_shapes_that_do_not_fit_each_other(checkpoint):
    edit(checkpoint, "target/decoder/decoder_norm/scale", np.ones(7, np.float32))
    message = refusal(checkpoint)
    assert "decoder/decoder_norm/scale has shape (7,)" in message
    assert "(8,)" in message


def test_shapes_that_no_t5_has(checkpoint):
    edit(checkpoint, f"target/decoder/{BIAS}", np.ones((2, 5), np.float32))
    message = refusal(checkpoint)
    assert "shapes that no T5 has" in message
    assert "buckets must be even" in message


def test_a_leaf_that_describes_no_array(checkpoint):
    edit(checkpoint, f"target/{QUERY}", {"driver": "zarr", "kvstore": {"driver": "file"}})
    assert f"{QUERY} is neither an array" in refusal(checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(value, tmp_path, params):
    bad = np.array(params["encoder"]["layers_0"]["attention"]["query"]["kernel"])
    bad[3, 3] = value
    write_native(tmp_path / "checkpoint_3", replaced(params, QUERY, bad))
    message = refusal(tmp_path)
    assert f"{QUERY} holds NaN or infinite values in float32" in message
    with pytest.raises(CheckpointError, match=f"params: {QUERY} holds NaN"):
        save_t5x(tmp_path / "out", CONFIG, replaced(params, QUERY, bad), 3)
    assert not any((tmp_path / "out").iterdir())


def test_beyond_the_range_of_a_dtype(tmp_path, params):
    large = replaced(params, "decoder/decoder_norm/scale", np.full(8, 1e6, np.float32))
    write_native(tmp_path / "checkpoint_3", large)
    assert "infinite values in float16" in refusal(tmp_path, dtype="float16")


def test_stored_as_integers(checkpoint):
    edit(checkpoint, "target/decoder/decoder_norm/scale", np.ones(8, np.uint16))
    message = refusal(checkpoint)
    assert "decoder/decoder_norm/scale is stored as uint16" in message
    assert "before version 3" in message


def test_orbax_is_damaged(tmp_path, params):
    write_orbax(tmp_path, params, 3)
    state = tmp_path / "checkpoint_3" / "state"
    # All: which of them are read depends on how Orbax has merged them.
    for data in state.glob("**/d/*"):
        data.write_bytes(data.read_bytes()[:100])
    assert re.search(r"cannot be (read|opened|listed)", refusal(tmp_path))
    (state / "manifest.ocdbt").write_bytes(b"")
    assert "cannot be listed" in refusal(tmp_path)


def test_scanned_depths_that_differ(tmp_path, params):
    tree = laid_out(params, CONFIG, "scanned")
    wo = tree["encoder"]["encoder"]["mlp"]["wo"]["kernel"]
    tree = replaced(tree, "encoder/encoder/mlp/wo/kernel", np.concatenate([wo, wo], axis=1))
    write_native(tmp_path / "checkpoint_3", tree)
    message = refusal(tmp_path)
    assert "encoder/encoder/mlp/wo/kernel has shape (16, 4, 8)" in message
    assert "2 layers along axis 1" in message


def test_saving_over_a_step(tmp_path, params):
    save_t5x(tmp_path, CONFIG, params, 3)
    before = (tmp_path / "checkpoint_3" / "checkpoint").read_bytes()
    with pytest.raises(CheckpointError, match="checkpoint_3 exists and is not an empty directory"):
        save_t5x(tmp_path, CONFIG, params, 3)
    assert (tmp_path / "checkpoint_3" / "checkpoint").read_bytes() == before


def test_saving_what_does_not_fit(tmp_path, params):
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
    assert not any(tmp_path.iterdir())


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
    tree = laid_out(params, CONFIG, network)
    for path, array in flatten_dict(tree, sep="/").items():
        for bad in (array.ravel()[0], array[..., 0], array[..., None, None], array[:0]):
            write_single_file(tmp_path / "checkpoint_3", replaced(tree, path, np.asarray(bad)))
            message = refusal(tmp_path / "checkpoint_3")
            assert str(tmp_path / "checkpoint_3") in message
            if unscanned(path) != DECODER_QUERY:  # The width of heads is taken from it.
                assert "/".join(path.split("/")[-2:]) in message
                assert "has shape" in message


@pytest.mark.parametrize("network", NETWORKS[1:])
@pytest.mark.parametrize("shape", [(8, 4, 2), (8, 2, 5)])
def test_heads_of_another_number_or_width(network, shape, tmp_path, params):
    """Joined they would have the right shape."""
    tree = laid_out(params, CONFIG, network)
    layers = "decoder/decoder" if network == "scanned" else "decoder/layers_0"
    for path in (f"{layers}/encoder_decoder_attention/{name}/kernel" for name in ("value", "out")):
        bad = np.ones(shape if "value" in path else (*shape[1:], 8), np.float32)
        bad = np.expand_dims(bad, 1) if network == "scanned" else bad
        write_native(tmp_path / path.replace("/", ".") / "checkpoint_3", replaced(tree, path, bad))
        message = refusal(tmp_path / path.replace("/", "."))
        assert unscanned(path) in message
        assert "but the rest of the network asks for" in message


def of_other_kinds(good):
    """Metadata files that are damaged, from the good one's text."""
    fields = json.loads(good)
    yield from (good[: len(good) // 2], good[:1], "", "null", "[]", "3", "\0", '{"zarr_format": 2}')
    for name in ("shape", "chunks", "dtype", "zarr_format", "compressor"):
        kinds = [None, 3, -1, 1.5, "x", [], {}, [[]], [None], ["a"], [-1, 8], [0, 0], [8, 8.5]]
        for value in kinds:
            if (name, value) != ("compressor", None):
                yield json.dumps(fields | {name: value})
    yield json.dumps(fields | {"shape": [8, 9]})
    yield json.dumps(fields | {"dtype": "<f2"})
    yield json.dumps(fields | {"dtype": "<i4"})
    yield json.dumps(fields | {"order": "X"})
    for depth in (900, 100_000):  # The second ends TensorStore's process.
        yield "[" * depth
        yield "[" * depth + "]" * depth
        yield good[:-1] + ', "filters": ' + "[" * depth + "]" * depth + "}"
        yield good[:-1] + ', "other": ' + '{"a":' * depth + "1" + "}" * depth + "}"


@pytest.mark.parametrize("layout", ["native", "orbax"])
def test_metadata_is_damaged(layout, tmp_path, params):
    if layout == "native":
        write_current(tmp_path / "checkpoint_3", params)
    else:
        write_orbax(tmp_path, params, 3, use_ocdbt=False)
    (folder,) = tmp_path.glob(f"**/target.{QUERY.replace('/', '.')}")
    good = (folder / ".zarray").read_text()
    arrays = flatten_dict(open_t5x(tmp_path)[1], sep="/")
    np.testing.assert_array_equal(arrays[QUERY], flatten_dict(params, sep="/")[QUERY])
    for number, damaged in enumerate(of_other_kinds(good)):
        (folder / ".zarray").write_text(damaged)
        with pytest.raises(CheckpointError) as caught:
            np.asarray(flatten_dict(open_t5x(tmp_path)[1], sep="/")[QUERY])
        message = str(caught.value)
        assert QUERY in message, (number, damaged[:200])
        assert str(tmp_path) in message
        assert "\n" not in message
        assert len(message) < 900


def test_more_than_memory_holds(tmp_path, params):
    """Sizes that nothing contradicts: TensorStore would end the process."""
    write_orbax(tmp_path, params, 3, use_ocdbt=False)
    (file,) = tmp_path.glob("**/target.token_embedder.embedding/.zarray")
    fields = json.loads(file.read_text())
    for changes in ({"shape": [2**42, 8]}, {"chunks": [2**42, 8]}):
        file.write_text(json.dumps(fields | changes))
        message = refusal(tmp_path)
        named = (
            "token_embedder/embedding",
            "decoder/logits_dense",
            "Config.vocab_size must be",
        )
        assert any(name in message for name in named)


def test_files_of_another_dtype(checkpoint, tmp_path, params):
    halves = jax.tree.map(lambda a: a.astype(ml_dtypes.bfloat16), params)
    write_native(tmp_path / "half", halves)
    shutil.rmtree(array_of(checkpoint))
    shutil.copytree(array_of(tmp_path / "half"), array_of(checkpoint))
    assert (
        f"{QUERY} is bfloat16 (8, 8) in its files, but the checkpoint lists float32 (8, 8)"
    ) in refusal(checkpoint)


@pytest.mark.parametrize("written_by", [write_native, write_current])
def test_no_file_that_lists_the_arrays(written_by, tmp_path, params):
    written_by(tmp_path / "checkpoint_3", params)
    (tmp_path / "checkpoint_3" / "checkpoint").unlink()
    expected = f"{tmp_path / 'checkpoint_3'} has no file named checkpoint; copy or download"
    assert expected in refusal(tmp_path)
    assert expected in refusal(tmp_path / "checkpoint_3")
    with pytest.raises(CheckpointError, match="has no file named checkpoint"):
        open_checkpoint(tmp_path / "checkpoint_3")


def test_descriptions_of_other_kinds(checkpoint):
    contents = serialization.msgpack_restore((checkpoint / "checkpoint").read_bytes())
    good = flatten_dict(contents["optimizer"]["target"], sep="/", is_leaf=lambda *_: False)
    assert good[f"{QUERY}/driver"] == "zarr"
    for field in ("driver", "kvstore", "kvstore/path", "metadata", "metadata/shape"):
        for value in (3, "x", [], {}, [[8]], {"a": {"b": 1}}, ["8", "8"], b"x", True):
            edit(checkpoint, f"target/{QUERY}/{field}", value)
            assert QUERY in refusal(checkpoint), (field, value)
        (checkpoint / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))
    edit(checkpoint, f"target/{QUERY}/metadata/dtype", [["f4"]])
    assert f"{QUERY} is neither an array" in refusal(checkpoint)
    for leaf in (None, 3, 2.5, True, "x", b"x", [1, 2], np.float32(3), {"a": 1}, 1 + 2j):
        edit(checkpoint, f"target/{QUERY}", leaf)
        assert QUERY in refusal(checkpoint)


def test_msgpack_of_other_kinds(checkpoint):
    file = checkpoint / "checkpoint"

    def extension(*value):
        return msgpack.ExtType(1, msgpack.packb(value))

    targets = [
        3, None, [], "x", {3: 4}, {"a": {5: 6}}, {"__msgpack_chunked_array__": 1},
        {"a": {"__msgpack_chunked_array__": True, "shape": 3, "chunks": 4}},
        {"a": extension(1, 2, 3)}, {"a": extension((2,), "no dtype", b"1")},
        {"a": extension((2**60,), "float32", b"12")}, {"a": msgpack.ExtType(1, b"x")},
        {"a": msgpack.ExtType(2, b"\xc0")}, {"a": msgpack.ExtType(99, b"x")}, {"a\nb": 3},
    ]  # fmt: skip
    for target in targets:
        file.write_bytes(msgpack.packb({"version": 3, "optimizer": {"target": target}}))
        assert str(checkpoint) in refusal(checkpoint)
    for depth in (900, 20_000):
        for key in (b"\xa1a", b"\xa9optimizer", b"\xa6target", b"\xc0"):
            file.write_bytes((b"\x81" + key) * depth + b"\x01")
            assert str(file) in refusal(checkpoint)
    for size in (b"\xdd", b"\xdf"):  # Of an array or a map, which begins and is not there.
        file.write_bytes(b"\x81" + size + b"\x7f\xff\xff\xfe")
        assert f"{file} is truncated" in refusal(checkpoint)
