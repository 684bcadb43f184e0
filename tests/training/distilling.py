"""A short distillation, for tests."""

from __future__ import annotations

import dataclasses

from run_tiny import recipe
from tiny import changed

from specdec.training import distill


def distill_tiny(directory, data, model, target, **options):
    settings = recipe(str(data))
    del settings["vocabulary_path"]
    settings["loop"] = dataclasses.replace(
        settings["loop"], total_steps=40, eval_every=20, checkpoint_every=40
    )
    chosen = distill.DistillationOptions(str(target), **options)
    return distill.distill(directory, model=model, distillation=chosen, **settings)


def from_encoding(tiny_model):
    """A draft that starts from the target's encoding."""
    return changed(tiny_model, num_encoder_layers=0, encoding_width=tiny_model.d_model)
