"""What decoding configurations can name. The only place where the library meets gin's registry."""

from __future__ import annotations

import gin

from specdec.data import tasks
from specdec.runs.decode import DecodeRun
from specdec.types import SamplingConfig

configured_run = gin.external_configurable(DecodeRun, module="specdec")

gin.external_configurable(SamplingConfig, module="specdec")
for _task in (tasks.bundled_examples, tasks.given_texts, tasks.pairs_file, tasks.text_file):
    gin.external_configurable(_task, module="specdec.tasks")
