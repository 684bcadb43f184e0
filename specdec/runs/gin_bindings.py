"""What decoding configurations can name. The only place where the library meets gin's registry."""

from __future__ import annotations

import gin

from specdec.checkpoints.loading import checkpoint
from specdec.core.roofline import Hardware
from specdec.data import tasks
from specdec.decoding.hierarchical import Hierarchical
from specdec.drafters.copying import Copying
from specdec.drafters.ngram import Ngram
from specdec.drafters.random import Random
from specdec.models.partitioning import DeviceMesh
from specdec.runs import dry_run, reproduce
from specdec.runs.decode_run import DecodeRun
from specdec.types import SamplingConfig
from specdec.verifiers.block import BlockVerifier
from specdec.verifiers.lenient import LenientVerifier
from specdec.verifiers.token import TokenVerifier

configured_reproduction = gin.external_configurable(
    reproduce.Reproduction, "reproduce", module="specdec"
)
gin.external_configurable(reproduce.Study, module="specdec")
configured_run = gin.external_configurable(DecodeRun, module="specdec")

gin.external_configurable(dry_run.report, "dry_run", module="specdec")
gin.external_configurable(SamplingConfig, module="specdec")
gin.external_configurable(DeviceMesh, module="specdec")
configured_hardware = gin.external_configurable(Hardware, module="specdec")
gin.external_configurable(checkpoint, module="specdec.checkpoints")
for _draft in (Ngram, Copying, Random, Hierarchical):
    gin.external_configurable(_draft, module="specdec.drafts")
for _verifier in (TokenVerifier, BlockVerifier, LenientVerifier):
    gin.external_configurable(_verifier, module="specdec.verifiers")
for _task in (
    tasks.bundled_examples, tasks.given_texts, tasks.pairs_file, tasks.seqio_pairs_file,
    tasks.seqio_task, tasks.text_file,
):  # fmt: skip
    gin.external_configurable(_task, module="specdec.tasks")
