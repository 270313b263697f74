"""What attention is held against."""

from __future__ import annotations

import operator
from statistics import geometric_mean

from jaxkernels.bench.attention import of_model, over_xla
from jaxkernels.bench.records import Measured

from .bar import Bar, complete, without_time

# A forward pass may take this much more than its model bytes at the rate of the copy.
_MODEL_BAR = 1.08
# Forward and backward, times faster than XLA, where there is a mask to fuse.
_FUSED_BAR = 1.7


def _is_scores(m: Measured) -> bool:
    return m["group"] == "scores"


def _is_both(m: Measured) -> bool:
    return _is_scores(m) and m["direction"] == "both"


def _is_exact_layer(m: Measured) -> bool:
    return m["group"] == "layers" and m["dtype"] == "float32"


def _missing(m: Measured) -> list[str]:
    """Contenders that a bar needs, and the memory of ours. cuDNN's layer is in no bar: it may refuse."""
    lacks = without_time(m, *(("copy",) if _is_scores(m) else ()), "xla", "ours")
    return lacks + (["memory"] if _is_both(m) and _temporary_arrays(m) is None else [])


def _temporary_arrays(m: Measured) -> float | None:
    """Temporary bytes over q x k: the smallest further array of a sequence's scores has a byte for each."""
    size = m.extra("ours", "temp_bytes")
    return None if size is None else size / m["length"] ** 2


_MEMORY = Bar(
    # Scores, result and gradient are all that is in memory.
    what="temporary bytes of forward and backward over q k, most",
    select=_is_both,
    metric=_temporary_arrays,
    reduce=max,
    limit=1.0,
    passes=operator.lt,
)
_LAYERS = "float32 layers, over XLA, least"

BARS = {
    # A CPU is held to no losses,
    "cpu": [
        complete(_missing),
        Bar("scores, over XLA, least", _is_scores, over_xla, min, 1.0),
        _MEMORY,
        Bar(_LAYERS, _is_exact_layer, over_xla, min, 1.0),
    ],
    # a GPU to the copy's rate and to gains.
    "gpu": [
        complete(_missing),
        Bar(
            what="forward, time over that of the model bytes, most",
            select=lambda m: _is_scores(m) and not _is_both(m),
            metric=of_model,
            reduce=max,
            limit=_MODEL_BAR,
            passes=operator.le,
        ),
        Bar(
            what="forward and backward under masks, over XLA, geometric mean",
            select=lambda m: _is_both(m) and m["variant"] != "plain",
            metric=over_xla,
            reduce=geometric_mean,
            limit=_FUSED_BAR,
        ),
        Bar("forward and backward, over XLA, least", _is_both, over_xla, min, 1.0),
        _MEMORY,
        Bar(_LAYERS, _is_exact_layer, over_xla, min, 1.0, operator.gt),
    ],
}
