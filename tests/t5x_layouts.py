"""T5X checkpoints of every network and layout, written for tests as T5X itself lays them out."""

import re

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from flax import serialization
from flax.traverse_util import flatten_dict, unflatten_dict

# T5X's networks: examples/t5, and examples/scalable_t5 without and with scanning over layers.
NETWORKS = ("t5", "scalable_t5", "scanned")
# Of an attention's kernels, the names of the axes.
JOINED = dict.fromkeys(("query", "key", "value"), ("embed", "joined_kv"))
JOINED["out"] = ("joined_kv", "embed")
APART = dict.fromkeys(("query", "key", "value"), ("embed", "heads", "kv"))
APART["out"] = ("heads", "kv", "embed")
# Of a layer, its attentions and what its norms come before.
PARTS = {
    "encoder": (("attention",), ("attention", "mlp")),
    "decoder": (
        ("self_attention", "encoder_decoder_attention"),
        ("self_attention", "cross_attention", "mlp"),
    ),
}


def parameter_axes(config, network, scan_axis=1):
    """The parameters of one of T5X's networks: by path the names of their axes.

    They are the "params" and "params_axes" of the initialised modules, as tests/integrations
    checks. Source: network.py and layers.py in t5x/examples/t5 and t5x/examples/scalable_t5 of
    github.com/google-research/t5x at commit cc342d4; ``scan_axis`` is its ``param_scan_axis``.
    """
    axes = {"token_embedder/embedding": ("vocab", "embed")}
    if not config.tied_logits:
        axes["decoder/logits_dense/kernel"] = ("embed", "vocab")
    table = {"relpos_bias/rel_embedding": ("heads", "relpos_buckets")}
    for stack, (attentions, norms) in PARTS.items():
        axes[f"{stack}/{stack}_norm/scale"] = ("embed",)
        layer = {f"pre_{name}_layer_norm/scale": ("embed",) for name in norms}
        for name in attentions:
            kernels = JOINED if network == "t5" else APART
            layer |= {f"{name}/{kernel}/kernel": names for kernel, names in kernels.items()}
        for name in ("wi_0", "wi_1") if config.decoder.gated else ("wi",):
            layer[f"mlp/{name}/kernel"] = ("embed", "mlp")
        layer["mlp/wo/kernel"] = ("mlp", "embed")
        if network != "t5" or config.decoder.positions.in_every_layer:
            layer |= table
        else:
            axes |= {f"{stack}/{path}": names for path, names in table.items()}
        for path, names in layer.items():
            if network == "scanned":
                names = (*names[:scan_axis], "layers", *names[scan_axis:])
                axes[f"{stack}/{stack}/{path}"] = names
            else:
                for i in range(depth_of(config, stack)):
                    axes[f"{stack}/layers_{i}/{path}"] = names
    return axes


def depth_of(config, stack):
    return config.num_encoder_layers if stack == "encoder" else config.num_decoder_layers


def parameter_sizes(config, stack):
    """Of a stack, the sizes of axes by name."""
    return {
        "vocab": config.vocab_size, "embed": config.d_model, "mlp": config.d_ff,
        "heads": config.num_heads, "kv": config.head_dim,
        "joined_kv": config.num_heads * config.head_dim,
        "relpos_buckets": config.decoder.positions.buckets, "layers": depth_of(config, stack),
    }  # fmt: skip


def laid_out(params, config, network, scan_axis=1):
    """The tree of one of T5X's networks, of the values of specdec's (which is examples/t5's)."""
    flat, tree = flatten_dict(params, sep="/"), {}
    for path, names in parameter_axes(config, network, scan_axis).items():
        stack, _, rest = path.partition("/")
        shape = [parameter_sizes(config, stack)[name] for name in names if name != "layers"]

        def one(path, shape=shape):
            if path not in flat:  # Layers share their stack's table.
                path = re.sub(r"layers_\d+/", "", path)
            return np.reshape(flat[path], shape)

        if "layers" in names:
            name = rest.removeprefix(f"{stack}/")
            each = [one(f"{stack}/layers_{i}/{name}") for i in range(depth_of(config, stack))]
            tree[path] = np.stack(each, names.index("layers"))
        else:
            tree[path] = one(path)
    return unflatten_dict(tree, sep="/")


def state_of(params):
    """An optimizer's state beside the parameters: factored moments as Adafactor's."""
    slots = jax.tree.map(lambda a: {"m": np.zeros(1, np.float32), "v": np.ones_like(a)}, params)
    return {"step": np.asarray(3, np.int32), "param_states": slots}


def write_native(directory, params, driver="gfile", split=False):
    """Version 3: kernels and embedding in TensorStore, the rest inline, as older T5X divides.

    ``split`` gives each layer that was scanned over, or else each head, chunks of its own.
    """
    directory.mkdir(parents=True)

    def leaf(name, array):
        array = np.asarray(array)
        if array.ndim < 2 or "rel_embedding" in name:
            return array
        chunks = list(array.shape)
        if split and array.ndim > 2:
            chunks[1] = 1
        folder = name.replace("/", ".")
        metadata = {
            "chunks": chunks,
            "compressor": {"id": "gzip", "level": 1},
            "dtype": array.dtype.name if array.dtype.name == "bfloat16" else array.dtype.str,
            "shape": list(array.shape),
        }
        kvstore = {"driver": "file", "path": str(directory / folder)}
        spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}
        ts.open(spec, create=True).result().write(array).result()
        kvstore = {"driver": driver, "path": folder}
        if driver == "gcs":
            kvstore["bucket"] = "t5x-dummy-bucket"
        return {"driver": "zarr", "kvstore": kvstore, "metadata": metadata}

    write_contents(directory, params, leaf)


def write_current(directory, params):
    """Version 3 as T5X writes it now: all in TensorStore, described by what ts.Spec makes of it."""
    directory.mkdir(parents=True)

    def leaf(name, array):
        array = np.asarray(array)
        folder = name.replace("/", ".")
        metadata = {"compressor": {"id": "gzip"}, "shape": array.shape, "chunks": array.shape}
        spec = {"driver": "zarr", "dtype": array.dtype.name, "metadata": metadata}
        kvstore = {"driver": "file", "path": str(directory / folder)}
        ts.open(spec | {"kvstore": kvstore}, create=True).result().write(array).result()
        return ts.Spec(spec | {"kvstore": {"driver": "file", "path": folder}}).to_json()

    write_contents(directory, params, leaf)


def write_contents(directory, params, leaf):
    leaves = flatten_dict({"state": state_of(params), "target": params}, sep="/")
    written = {name: leaf(name, array) for name, array in leaves.items()}
    contents = {"version": 3, "optimizer": unflatten_dict(written, sep="/")}
    (directory / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))


def write_single_file(path, params):
    """All inline, under "optimizer"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    optimizer = {"state": state_of(params), "target": params}
    contents = {"version": 3, "optimizer": jax.tree.map(np.asarray, optimizer)}
    path.write_bytes(serialization.msgpack_serialize(contents))


def write_flax_optim(path, params):
    """All inline, as flax.optim's own state dict was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = jax.tree.map(np.asarray, {"state": state_of(params), "target": params})
    path.write_bytes(serialization.msgpack_serialize(contents))


def write_orbax(directory, params, step, use_ocdbt=True):
    """As T5X's OrbaxCheckpointManagerInterface: checkpoint_<step>/state."""
    options = ocp.CheckpointManagerOptions(
        step_prefix="checkpoint", enable_async_checkpointing=False
    )
    handlers = {"state": ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt)}
    state = {"target": params, "state": state_of(params), "flax_mutables": {}}
    state = jax.tree.map(np.asarray, state)
    with ocp.CheckpointManager(directory, options=options, item_handlers=handlers) as manager:
        manager.save(step, args=ocp.args.Composite(state=ocp.args.PyTreeSave(state)), force=True)
