"""Names for gin files of reproductions, beside those of :mod:`specdec.runs.gin_bindings`."""

from __future__ import annotations

import gin

from specdec.reproduce.runs.reproduce import Reproduction, Study
from specdec.runs import gin_bindings

configured = gin_bindings.configured

gin.external_configurable(Study, module="specdec")
gin.external_configurable(Reproduction, "reproduce", module="specdec")
