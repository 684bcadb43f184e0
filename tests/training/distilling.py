"""A short distillation, and what validations of a run find, for tests."""

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


def noted_validations(patch, module):
    """A list to which each validation of a module's runs adds what it finds."""
    results, per_token = [], module.per_token

    def noted(*args):
        means = per_token(*args)
        return lambda params: results.append(means(params)) or results[-1]

    patch.setattr(module, "per_token", noted)
    return results
