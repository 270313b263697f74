"""What the cross entropy of a linear layer is asked for, besides its operands. Pure."""

from __future__ import annotations

import dataclasses

from jaxkernels.typing import Implementation, LogitsDtype


@dataclasses.dataclass(frozen=True)
class Options:
    """What a program is made for.

    Attributes:
        trans_w: w is stored as (V, H) instead of (H, V).
        all_sums: the entropy or a share of the smoothing is wanted.
        logits_dtype: None for that of x.
        max_bytes: see `plan_linear_cross_entropy`.
        implementation: as the public function has it.
    """

    trans_w: bool = False
    all_sums: bool = False
    logits_dtype: LogitsDtype | None = None
    max_bytes: int | None = None
    implementation: Implementation | None = None
