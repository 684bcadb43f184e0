"""The least time of speculative beams on a device, from shapes and public figures alone."""

from __future__ import annotations

import dataclasses

from specdec.checkpoints.architectures import Config
from specdec.core.roofline import Hardware
from specdec.core.theory_beams import beam_speedup
from specdec.measure.device_share import DeviceShare
from specdec.models.partitioning import DeviceMesh


@dataclasses.dataclass(frozen=True)
class BeamFloors:
    """Floors of one row's beams on one device; the models' dtypes are their configs'.

    Hypotheses lie side by side in one row of each cache, which is read whole: W L entries of the
    output and the call's own. A plain call has W tokens, the target's W + u gamma, the draft's
    first one 2 W of which W are scored, and each of its others u.
    """

    target: Config
    draft: Config
    num_beams: int  # W.
    draft_beams: int  # u.
    gamma: int
    # S and L, the buckets.
    input_len: int
    output_len: int

    def _call(
        self, config: Config, hardware: Hardware, tokens: int, scored: int | None = None
    ) -> float:
        share = DeviceShare(config, DeviceMesh().planned_target, 1)
        cached = self.num_beams * self.output_len + tokens
        return share.call(tokens, cached, self.input_len, scored).floor(hardware)

    def computed(self, hardware: Hardware, levels: float) -> dict[str, float]:
        """Seconds of calls, v, c and the speedup over plain beams, without the encoders.

        v = t(W + u gamma) / t(W),  c = (d(2 W) + (gamma - 1) d(u)) / (gamma t(W)),
        speedup = levels / (v + gamma c), where t and d are floors of the target's and the draft's
        calls by their tokens (:meth:`specdec.core.roofline.Load.floor`).

        Args:
          levels: that a call advances, as measured.
        """
        w, u, gamma = self.num_beams, self.draft_beams, self.gamma
        plain = self._call(self.target, hardware, w)
        call = self._call(self.target, hardware, w + u * gamma)
        drafting = self._call(self.draft, hardware, 2 * w, w)
        drafting += (gamma - 1) * self._call(self.draft, hardware, u)
        v, c = call / plain, drafting / gamma / plain
        return {
            "plain_call": plain, "target_call": call, "drafting": drafting, "verify_ratio": v,
            "cost_ratio": c, "speedup": beam_speedup(levels, gamma, c, v),
        }  # fmt: skip
