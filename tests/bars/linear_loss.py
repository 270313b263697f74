"""What the losses of linear layers are held against."""

from __future__ import annotations

import operator

from jaxkernels.bench import linear_loss

from .bar import Bar, complete, without_time

_ONE_CHUNK = linear_loss.GPU_CASES[0]

BARS = {
    "gpu": [
        complete(lambda m: without_time(m, "xla", "ours")),
        Bar(
            what="(4096, 4096, 128256) bfloat16, ms",
            select=lambda m: m.case == _ONE_CHUNK,
            metric=lambda m: None if m.seconds("ours") is None else 1e3 * m.seconds("ours"),
            reduce=max,
            limit=23.0,
            passes=operator.le,
        ),
        Bar(
            what="times faster than optax, least",
            select=lambda m: True,
            metric=lambda m: m.ratio("xla", "ours"),
            reduce=min,
            limit=1.0,
        ),
        Bar(
            what="temporary bytes, most",
            select=lambda m: True,
            metric=lambda m: m.extra("ours", "temp_bytes"),
            reduce=max,
            limit=3_200_000_000,
            passes=operator.le,
        ),
    ],
    "cpu": [complete(lambda m: without_time(m, "xla", "ours"))],
}
