"""A short distillation, and what validations of a run find, for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from run_tiny import recipe
from tiny import changed

from specdec.training import distill, loop


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


def noted_loop(patch, module) -> dict[str, Any]:
    """What a module's recipe gives the loop, by name; nothing is trained."""
    seen: dict[str, Any] = {}

    def noted(figures, params, optimizer, training, validation, *_, frozen=None, **more):
        means = loop.validation_means(figures, frozen, validation)
        seen.update(figures=figures, params=params, frozen=frozen, training=training, means=means)
        seen.update(more)
        return params

    patch.setattr(module, "run_loop", noted)
    return seen


def noted_validations(patch):
    """A list to which each validation of a run adds what it finds."""
    results, validation_means = [], loop.validation_means

    def noted(*args):
        means = validation_means(*args)
        return lambda params: results.append(means(params)) or results[-1]

    patch.setattr(loop, "validation_means", noted)
    return results
