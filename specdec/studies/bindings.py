"""What configurations of studies can name, beside those of :mod:`specdec.runs.gin_bindings`."""

from __future__ import annotations

import gin

from specdec.runs import gin_bindings
from specdec.studies.runs.beam_runs import BeamRuns
from specdec.studies.runs.control_runs import ControlRuns
from specdec.studies.runs.draft_runs import DraftRuns
from specdec.studies.runs.loop_runs import LoopRuns
from specdec.studies.runs.reproduce import Reproduction, Study
from specdec.studies.runs.rule_runs import FollowedRules, RuleCosts, SampledRules
from specdec.studies.runs.siblings import Siblings
from specdec.studies.runs.tree_runs import TreeRuns

configured = gin_bindings.configured

for _each in (
    Study, Siblings, TreeRuns, BeamRuns, ControlRuns, DraftRuns, LoopRuns, RuleCosts, FollowedRules,
    SampledRules,
):  # fmt: skip
    gin.external_configurable(_each, module="specdec")
gin.external_configurable(Reproduction, "reproduce", module="specdec")
