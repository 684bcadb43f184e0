"""The plug-in under T5X's own partitioner: python run_on_hosts_in_t5x.py DIRECTORY I N ADDRESS.

For test_t5x_on_hosts.py; alone, as process 0 of 1, what several are compared with. DIRECTORY holds
a draft. Writes report-I.json.
"""

import importlib
import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from test_inside_t5x import CONFIGS, LIMIT, V, batch_of, module_of, speculative_model
from tiny import changed, ragged_inputs, random_params

from specdec import BeamConfig, Copying, SamplingConfig
from specdec.models.placing import to_host

ROWS, DEVICES = 64, 4
CONFIG = changed(CONFIGS["v1.0"], num_heads=DEVICES, head_dim=4)
WAYS = {
    "copying": {"draft": Copying()},
    "a draft model": {},
    "sampled": {"sampling": SamplingConfig(1.0)},
    "beams": {"beam": BeamConfig(2, rule="t5x"), "gamma": 1},
}


def main(directory: Path, index: int, count: int, address: str) -> None:
    if count > 1:
        jax.distributed.initialize(address, count, index)
    t5x = importlib.import_module("t5x")
    importlib.import_module("t5x.examples.t5.network")
    partitioner = importlib.import_module("t5x.partitioning").PjitPartitioner(
        num_partitions=DEVICES
    )
    module = module_of(t5x, CONFIG)
    batch = batch_of(np.asarray(ragged_inputs(ROWS, 6, V)), LIMIT)

    def spread(tree, spec):
        sharding = NamedSharding(partitioner.mesh, spec)
        tree = jax.tree.map(np.asarray, tree)
        return jax.tree.map(
            lambda array: jax.make_array_from_callback(array.shape, sharding, array.__getitem__),
            tree,
        )

    given = spread(random_params(CONFIG, 0), P()), spread(batch, P("data"))
    report = {"devices": jax.device_count(), "mesh": dict(partitioner.mesh.shape)}
    for name, options in WAYS.items():
        model = speculative_model(module, **{"draft": str(directory / "draft")} | options)
        decode = partitioner.partition(
            lambda params, batch, model=model: model.predict_batch_with_aux(
                params, batch, rng=jax.random.PRNGKey(3)
            ),
            in_axis_resources=(P(), P("data")), out_axis_resources=(P(), P()),
        )  # fmt: skip
        tokens, told = to_host(decode(*given))
        report[name] = {"tokens": tokens.tolist(), "scores": told["scores"].tolist()}
    (directory / f"report-{index}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
