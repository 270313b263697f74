"""The options of linear_cross_entropy. This module imports nothing of JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxkernels.typing import Implementation


@dataclasses.dataclass(frozen=True)
class Options:
    """The static parameters of a call.

    Attributes:
        trans_w: w is stored as (V, H) instead of (H, V).
        all_sums: whether the entropy or the label smoothing is needed.
        logits_dtype: dtype of the logits; None for that of x.
        max_bytes: see `plan_linear_cross_entropy`.
        implementation: as for `linear_cross_entropy`.
    """

    trans_w: bool = False
    all_sums: bool = False
    logits_dtype: Literal["float32"] | None = None
    max_bytes: int | None = None
    implementation: Implementation | None = None
