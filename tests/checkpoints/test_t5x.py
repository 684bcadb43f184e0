"""T5X checkpoints: the same numbers as T5X's, whatever the layout, and back."""

import dataclasses
import http.server
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import urllib.parse
from pathlib import Path

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
import tensorstore as ts
from flax import serialization
from flax.traverse_util import flatten_dict
from t5x_layouts import (
    NETWORKS,
    laid_out,
    numpy_logits,
    write_current,
    write_flax_optim,
    write_native,
    write_orbax,
    write_single_file,
)
from tiny import TINY, TINY_T5, changed, ragged_inputs, random_params

import specdec
from specdec.checkpoints import (
    CheckpointError,
    find_checkpoint,
    find_vocabulary,
    is_t5x,
    load_huggingface,
    open_t5x,
    read_config,
    save_huggingface,
    save_t5x,
)
from specdec.checkpoints.t5x_files import chunk_shape, kvstore
from specdec.models.transformer.network import Transformer

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


def native(directory, params):
    write_native(directory / "checkpoint_3", params)


def current(directory, params):
    write_current(directory / "checkpoint_3", params)


def gcs(directory, params):
    write_native(directory / "checkpoint_3", params, driver="gcs")


def single_file(directory, params):
    write_single_file(directory / "checkpoint_3", params)


def flax_optim(directory, params):
    write_flax_optim(directory / "checkpoint_3", params)


def orbax(directory, params):
    write_orbax(directory, params, 3)


def orbax_without_ocdbt(directory, params):
    write_orbax(directory, params, 3, use_ocdbt=False)


LAYOUTS = [native, current, gcs, single_file, flax_optim, orbax, orbax_without_ocdbt]


def assert_same(opened, network):
    config, params = opened
    assert config == network[0]
    assert jax.tree.structure(params) == jax.tree.structure(network[1])
    jax.tree.map(np.testing.assert_array_equal, params, network[1])


def logits(config, params, inputs, decoder_inputs):
    params = jax.tree.map(jnp.asarray, params)
    return Transformer(config).apply({"params": params}, inputs, decoder_inputs)


def test_logits_are_those_of_the_documented_arithmetic(tmp_path):
    config, params = network_of("v1.1")
    params = jax.tree.map(lambda a: 0.7 * a, params)  # Sharp attention would magnify rounding.
    native(tmp_path, params)
    config, opened = open_t5x(tmp_path)
    inputs, decoder_inputs = ragged_inputs(3, 40, 19), ragged_inputs(3, 30, 19, seed=1)
    expected = numpy_logits(params, config, np.asarray(inputs), np.asarray(decoder_inputs))
    actual = logits(config, opened, inputs, decoder_inputs)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_a_checkpoint_of_t5x_itself(data_dir):
    directory = data_dir / "t5x_tiny"
    if not directory.is_dir():
        pytest.skip(f"{data_dir} has no t5x_tiny, a checkpoint that T5X wrote")
    config, params = open_t5x(directory / "checkpoint_3")
    assert (config.vocab_size, config.d_model, config.d_ff, config.head_dim) == (32128, 4, 8, 2)
    assert config.decoder.gated
    assert not config.tied_logits
    generator = np.random.default_rng(0)
    inputs = generator.integers(2, 32128, (2, 24))
    inputs[1, 15:] = 0
    decoder_inputs = generator.integers(2, 32128, (2, 20))
    decoder_inputs[:, 0] = 0
    arrays = {path: raw_array(directory / "checkpoint_3", path) for path in flatten(params)}
    expected = numpy_logits(unflatten(arrays), config, inputs, decoder_inputs)
    actual = logits(config, params, jnp.asarray(inputs), jnp.asarray(decoder_inputs))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def flatten(tree):
    return flatten_dict(tree, sep="/")


def unflatten(flat):
    tree = {}
    for path, leaf in flat.items():
        *folders, last = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree


def raw_array(directory, path):
    """An array of a native checkpoint, read without the project's code."""
    folder = directory / f"target.{path.replace('/', '.')}"
    if folder.is_dir():
        kvstore = {"driver": "file", "path": str(folder)}
        return ts.open({"driver": "zarr", "kvstore": kvstore}).result().read().result()
    node = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    node = node["optimizer"]["target"]
    for name in path.split("/"):
        node = node[name]
    return node


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_network(layout, network, tmp_path):
    layout(tmp_path, network[1])
    assert is_t5x(tmp_path)
    assert is_t5x(tmp_path / "checkpoint_3")
    assert_same(open_t5x(tmp_path), network)
    assert_same(open_t5x(tmp_path / "checkpoint_3"), network)


@pytest.mark.parametrize(
    ("layout", "name"),
    [(native, "v1.0"), (current, "deep"), (single_file, "square"), (orbax, "umt5")],
)
@pytest.mark.parametrize("written_by", NETWORKS[1:])
def test_every_network_of_t5x_is_read_as_ours(layout, name, written_by, tmp_path):
    config, params = network_of(name)
    layout(tmp_path, laid_out(params, config, written_by))
    assert_same(open_t5x(tmp_path), (config, params))


@pytest.mark.parametrize("written_by", NETWORKS[1:])
def test_dtypes_of_other_networks(written_by, tmp_path):
    config, params = network_of("v1.1")
    halves = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    current(tmp_path, laid_out(halves, config, written_by))
    assert_same(open_t5x(tmp_path, None), (config, halves))
    widened = jax.tree.map(lambda a: a.astype(np.float32), halves)
    assert_same(open_t5x(tmp_path), (config, widened))


def test_scanned_along_the_first_axis(tmp_path):
    config, params = network_of("deep")
    native(tmp_path, laid_out(params, config, "scanned", scan_axis=0))
    assert_same(open_t5x(tmp_path), (config, params))


def test_a_scanned_layer_is_read_alone(tmp_path):
    config, params = network_of("deep")
    write_native(tmp_path / "checkpoint_3", laid_out(params, config, "scanned"), split=True)
    folder = tmp_path / "checkpoint_3" / "target.encoder.encoder.mlp.wo.kernel"
    (folder / "0.1.0").unlink()
    layers = open_t5x(tmp_path)[1]["encoder"]
    for i in (0, 2):
        expected = params["encoder"][f"layers_{i}"]["mlp"]["wo"]["kernel"]
        np.testing.assert_array_equal(layers[f"layers_{i}"]["mlp"]["wo"]["kernel"], expected)
    with pytest.raises(CheckpointError, match=r"encoder/encoder/mlp/wo/kernel cannot be read"):
        np.asarray(layers["layers_1"]["mlp"]["wo"]["kernel"])


def test_of_heads_that_are_apart_those_are_read_that_are_asked_for(tmp_path):
    config, params = network_of("deep")
    write_native(tmp_path / "checkpoint_3", laid_out(params, config, "scalable_t5"), split=True)
    for part in ("query", "out"):
        name = f"encoder/layers_1/attention/{part}/kernel"
        expected = flatten(params)[name]
        array = flatten(open_t5x(tmp_path)[1])[name]
        for index in (
            (slice(3, 9), slice(12, 16)), (slice(5, 16), slice(2, 14)), (slice(None), slice(7, 9)),
            (slice(7, 9),), (slice(1, 14, 3), slice(1, 15, 2)), (slice(4, 4), slice(None)), (),
        ):  # fmt: skip
            np.testing.assert_array_equal(array.read(index), expected[index])
        np.testing.assert_array_equal(array, expected)
    kernel = flatten(open_t5x(tmp_path)[1])["encoder/layers_1/attention/query/kernel"]
    folder = tmp_path / "checkpoint_3" / "target.encoder.layers_1.attention.query.kernel"
    (folder / "0.0.0").unlink()
    expected = params["encoder"]["layers_1"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(kernel.read((slice(None), slice(12, 24))), expected[:, 12:])
    with pytest.raises(CheckpointError, match="attention/query/kernel cannot be read"):
        kernel.read((slice(None), slice(11, 24)))


@pytest.mark.parametrize("layout", [native, orbax_without_ocdbt])
def test_optimizer_arrays_are_not_opened(layout, network, tmp_path):
    layout(tmp_path, network[1])
    folders = list((tmp_path / "checkpoint_3").glob("**/*state.param_states*"))
    assert len(folders) > 20
    for i, folder in enumerate(folders):
        shutil.rmtree(folder)
        if i % 2:
            folder.mkdir()
            (folder / ".zarray").write_text("garbage")
    assert_same(open_t5x(tmp_path), network)


@pytest.mark.parametrize("layout", [native, flax_optim])
def test_optimizer_values_in_msgpack_are_not_built(layout, network, tmp_path):
    layout(tmp_path, network[1])
    (path,) = (p for p in tmp_path.glob("**/checkpoint*") if p.is_file())
    contents = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
    state = contents.get("optimizer", contents)["state"]
    state["target"] = state["optimizer"] = {"target": msgpack.ExtType(1, b"garbage")}
    path.write_bytes(msgpack.packb(contents))
    with pytest.raises(ValueError, match="unpack"):
        serialization.msgpack_restore(path.read_bytes())
    assert_same(open_t5x(tmp_path), network)


def test_parameters_are_read_when_used_and_each_time_anew(network, tmp_path):
    native(tmp_path, network[1])
    _, params = open_t5x(tmp_path)
    kernel = params["encoder"]["layers_0"]["mlp"]["wo"]["kernel"]
    assert isinstance(jnp.asarray(kernel), jax.Array)
    shutil.rmtree(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        np.asarray(kernel)
    shapes = {path: array.shape for path, array in flatten(params).items()}
    assert shapes == {path: array.shape for path, array in flatten(network[1]).items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes(dtype, network, tmp_path):
    save_t5x(tmp_path / "half", network[0], network[1], 3, dtype)
    metadata = tmp_path.glob("half/checkpoint_3/*/.zarray")
    kinds = {json.loads(path.read_text())["dtype"] for path in metadata}
    assert kinds == {"<f2" if dtype == "float16" else "bfloat16"}
    expected = jax.tree.map(lambda a: a.astype(jnp.dtype(dtype)), network[1])
    assert_same(open_t5x(tmp_path / "half", dtype), (network[0], expected))
    native(tmp_path / "full", network[1])
    assert_same(open_t5x(tmp_path / "full", dtype), (network[0], expected))
    widened = jax.tree.map(lambda a: a.astype(np.float32), expected)
    assert_same(open_t5x(tmp_path / "half"), (network[0], widened))


def test_the_latest_step_unless_one_is_asked_for(network, tmp_path):
    config, params = network
    doubled = jax.tree.map(lambda a: 2 * a, params)
    save_t5x(tmp_path, config, params, 9)
    save_t5x(tmp_path, config, doubled, 10)
    (tmp_path / "checkpoint_11.tmp-1234").mkdir()  # T5X's, while it writes.
    assert_same(open_t5x(tmp_path), (config, doubled))
    assert_same(open_t5x(tmp_path, step=9), network)
    assert_same(open_t5x(f"{tmp_path}/checkpoint_9/"), network)
    assert find_checkpoint(tmp_path) == (str(tmp_path / "checkpoint_10"), 10)


@pytest.mark.parametrize("name", ["v1.0", "v1.1", "umt5"])
def test_round_trip_through_hugging_face(name, tmp_path):
    network = network_of(name)
    save_t5x(tmp_path / "first", *network, 3)
    save_huggingface(tmp_path / "second", *open_t5x(tmp_path / "first"))
    config, params = load_huggingface(tmp_path / "second")
    assert_same((dataclasses.replace(config, dropout_rate=0.0), params), network)


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


def test_google_cloud_storage_is_named_whole():
    spec = {"driver": "gcs", "bucket": "b", "path": "a/checkpoint_3/target.x/"}
    assert kvstore("gs://b/a/checkpoint_3", "target.x/") == spec
    assert kvstore("gs://b") == {"driver": "gcs", "bucket": "b", "path": ""}
    assert kvstore("gs://b/a") == {"driver": "gcs", "bucket": "b", "path": "a/"}
    assert is_t5x("gs://b/a")
    assert find_vocabulary("gs://b/a") is None


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


def test_a_single_file_may_have_a_longer_name(network, tmp_path):
    single_file(tmp_path, network[1])
    path = (tmp_path / "checkpoint_3").rename(tmp_path / "test_t5_tiny.checkpoint_3")
    assert is_t5x(path)
    assert find_checkpoint(path) == (str(path), 3)
    assert_same(open_t5x(path), network)
    assert not is_t5x((tmp_path / "test_t5_tiny.checkpoint_3").rename(tmp_path / "spiece.model"))


def test_sharded_over_devices_is_read_once(tmp_path):
    """Also where devices hold the same. Of processes: see decoding/test_several_hosts.py."""
    config, params = network_of("deep")
    for network in NETWORKS:
        write_native(tmp_path / network / "checkpoint_3", laid_out(params, config, network))
    program = """
    import itertools, sys
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from specdec.checkpoints import open_t5x, read_sharded
    from specdec.checkpoints.parameters import StoredArray

    assert len(jax.devices()) == 4
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    sizes = []
    plain = StoredArray.read
    def measured(self, *parts):
        part = plain(self, *parts)
        sizes.append(part.size)
        return part
    StoredArray.read = measured
    folders, dtypes = ("t5", "scalable_t5", "scanned"), ("float32", "bfloat16")
    for folder, dtype in itertools.product(folders, dtypes):
        layer = open_t5x(f"{sys.argv[1]}/{folder}", dtype)[1]["encoder"]["layers_1"]
        attention = layer["attention"]
        kernels = layer["mlp"]["wo"], attention["query"], attention["out"]
        for kernel in (each["kernel"] for each in kernels):
            for axes in (P("model", None), P("data", "model"), P()):
                sizes.clear()
                array = read_sharded(kernel, NamedSharding(mesh, axes))
                assert sizes == [array.size], (sizes, axes)
                np.testing.assert_array_equal(array, np.asarray(kernel))
                assert array.dtype == dtype
                assert array.sharding.spec == axes
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    run_program(program, tmp_path, env=os.environ | flags)


class FakeStorage(http.server.BaseHTTPRequestHandler):
    """The two requests of Google Cloud Storage's JSON interface that reading makes."""

    folder: Path

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        _, bucket, _, *name = url.path.removeprefix("/storage/v1/").split("/", 3)
        assert bucket == "bucket"
        files = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        objects = {path.relative_to(self.folder).as_posix(): path for path in files}
        if name:
            path = objects.get(urllib.parse.unquote(name[0]))
            body = b"" if path is None else path.read_bytes()
            self.send_response(404 if path is None else 200)
            self.send_header("x-goog-generation", "1")
        else:
            found = [{"name": name} for name in objects if name.startswith(query.get("prefix", ""))]
            body = json.dumps({"items": found}).encode()
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def bucket(tmp_path):
    """A folder that is gs://bucket for the environment that is given with it."""
    handler = type("Handler", (FakeStorage,), {"folder": tmp_path / "bucket"})
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://localhost:{server.server_port}"
        fake = {"TENSORSTORE_GCS_HTTP_URL": url, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none"}
        yield tmp_path / "bucket", os.environ | fake
        server.shutdown()


def test_read_from_google_cloud_storage(bucket, tmp_path):
    folder, environment = bucket
    _, params = network_of("v1.1")
    write_native(folder / "models" / "checkpoint_2", jax.tree.map(np.zeros_like, params))
    write_native(folder / "models" / "checkpoint_10", params)
    program = """
    import sys
    import numpy as np
    from flax.traverse_util import flatten_dict
    from specdec.checkpoints import CheckpointError, open_checkpoint, open_t5x

    _, params = open_checkpoint("gs://bucket/models/")
    np.savez(sys.argv[1], **{k: np.asarray(v) for k, v in flatten_dict(params, sep=" ").items()})
    try:
        open_t5x("gs://bucket/models", step=3)
    except CheckpointError as error:
        print(error)
    """
    done = run_program(program, tmp_path / "read.npz", env=environment)
    assert done.stdout.strip() == "gs://bucket/models has no step 3; the steps there are: 2, 10."
    read = np.load(tmp_path / "read.npz")
    expected = flatten(params)
    assert {name.replace(" ", "/") for name in read} == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(read[path.replace("/", " ")], array)


def run_program(program, *arguments, env):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env=env | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done
