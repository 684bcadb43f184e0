"""T5X's networks and the checkpoints that T5X itself writes of them, against the tests' layouts."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import unfreeze
from flax.traverse_util import flatten_dict
from t5x_layouts import NETWORKS, laid_out, parameter_axes
from tiny import TINY, changed, ragged_inputs, random_params

from specdec.checkpoints import open_t5x
from specdec.models.transformer.network import Transformer

# T5X and what it imports warn of much that is theirs to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

# T5X's position biases have one shape. No two sizes are equal, so that no two axes can be confused.
SIZES = {
    "d_model": 14, "num_heads": 3, "head_dim": 6, "d_ff": 22, "num_encoder_layers": 2,
    "num_decoder_layers": 4, "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}  # fmt: skip
CONFIGS = {name: changed(config, **SIZES) for name, config in TINY.items()}
V = 19


def module_of(t5x, config, network, **changes):
    package = getattr(t5x.examples, "t5" if network == "t5" else "scalable_t5").network
    fields = {
        "vocab_size": config.vocab_size, "emb_dim": config.d_model, "mlp_dim": config.d_ff,
        "num_heads": config.num_heads, "head_dim": config.head_dim, "dropout_rate": 0.0,
        "num_encoder_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "mlp_activations": ("gelu", "linear") if config.decoder.gated else ("relu",),
        "logits_via_embedding": config.tied_logits,
    }  # fmt: skip
    if network != "t5":
        fields["scan_layers"] = network == "scanned"
    return package.Transformer(package.T5Config(**(fields | changes)))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("network", "changes"),
    [*((network, {}) for network in NETWORKS), ("scanned", {"param_scan_axis": 0})],
    ids=[*NETWORKS, "first axis"],
)
def test_layouts_are_those_of_the_modules(t5x, network, changes, name):
    config = CONFIGS[name]
    module, tokens = module_of(t5x, config, network, **changes), jnp.ones((1, 4), jnp.int32)
    made = jax.eval_shape(lambda key: module.init(key, tokens, tokens, tokens), jax.random.key(0))
    described = parameter_axes(config, network, *changes.values())
    axes = flatten_dict(made["params_axes"], sep="/")
    assert described == {path.removesuffix("_axes"): each.names for path, each in axes.items()}
    ours = laid_out(random_params(config, 0), config, network, *changes.values())
    theirs = flatten_dict(made["params"], sep="/")
    assert all(leaf.dtype == jnp.float32 for leaf in theirs.values())
    assert {path: leaf.shape for path, leaf in theirs.items()} == {
        path: leaf.shape for path, leaf in flatten_dict(ours, sep="/").items()
    }


class Written:
    """A training state of one of T5X's networks, far from its initialisation, and its writers."""

    def __init__(self, t5x, config, network):
        import seqio

        adafactor = importlib.import_module("t5x.adafactor")
        optimizer = adafactor.Adafactor(
            decay_rate=0.8, step_offset=0,
            logical_factor_rules=adafactor.standard_logical_factor_rules(),
        )  # fmt: skip
        self.network, self.module = network, module_of(t5x, config, network)
        vocabulary = seqio.PassThroughVocabulary(config.vocab_size, 1)
        model = t5x.models.EncoderDecoderModel(
            self.module, vocabulary, vocabulary, optimizer_def=optimizer
        )
        shapes = {"encoder_input_tokens": (2, 8), "decoder_input_tokens": (2, 8)}
        self.partitioner = t5x.partitioning.PjitPartitioner(num_partitions=1)
        initializer = t5x.utils.TrainStateInitializer(
            optimizer_def=optimizer, init_fn=model.get_initial_variables, input_shapes=shapes,
            partitioner=self.partitioner,
        )  # fmt: skip
        self.shape = initializer.global_train_state_shape
        state = initializer.from_scratch(jax.random.key(0)).replace_step(jnp.asarray(3))
        generator = np.random.default_rng(0)
        noisy = jax.tree.map(
            lambda a: a + 0.2 * generator.normal(size=a.shape).astype(a.dtype), state.params
        )
        self.state = state.replace_params(noisy)
        self.params = jax.tree.map(np.asarray, unfreeze(noisy))
        self.checkpoints = t5x.checkpoints

    def native(self, directory, dtype=None):
        """By T5X's own Checkpointer."""
        self.checkpoints.Checkpointer(
            self.shape, self.partitioner, str(directory), save_dtype=dtype
        ).save(self.state)

    def orbax(self, directory):
        """By the manager that T5X makes of Orbax's."""
        directory.mkdir()
        manager = self.checkpoints.OrbaxCheckpointManagerInterface(
            str(directory), self.shape, self.partitioner
        )
        manager.save(self.state)
        manager.wait_until_finished()
        manager.close()


@pytest.fixture(scope="module", params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture(scope="module", params=NETWORKS)
def written(t5x, config, request):
    return Written(t5x, config, request.param)


@pytest.mark.parametrize(
    ("writer", "dtype"),  # T5X's save_dtype does not reach Orbax.
    [("native", None), ("native", jnp.bfloat16), ("orbax", None)],
    ids=["native", "native bfloat16", "orbax"],
)
def test_log_probabilities_of_an_output(written, config, writer, dtype, tmp_path):
    """Those of T5X's own module; each layer has position biases of its own where T5X's have."""
    getattr(written, writer)(tmp_path / "model", *([dtype] if dtype else []))
    found, opened = open_t5x(tmp_path / "model")
    own_biases = written.network != "t5"
    assert found == changed(config, relative_bias_in_every_layer=own_biases)
    inputs, output = ragged_inputs(6, 40, V), ragged_inputs(6, 30, V, seed=1)
    tokens = jnp.pad(output, ((0, 0), (1, 0)))[:, :-1]
    params = jax.tree.map(lambda a: a.astype(dtype or a.dtype).astype(a.dtype), written.params)
    logits = written.module.apply(
        {"params": params}, inputs, tokens, jnp.ones_like(tokens), enable_dropout=False
    )
    expected = log_probs(logits, output)
    assert np.std(expected) > 0.5
    ours = Transformer(found).apply({"params": jax.tree.map(jnp.asarray, opened)}, inputs, tokens)
    np.testing.assert_allclose(log_probs(ours, output), expected, rtol=0, atol=1e-4)


def log_probs(logits, output):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), output[..., None], axis=-1)
