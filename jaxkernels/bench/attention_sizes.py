"""Random attention layers: batch, query heads, key heads, lengths (including odd ones), depth, a mask or a bias."""

import random
from collections.abc import Iterable

import jax

from jaxkernels.bench.records import Case

KINDS = ("plain", "causal", "mask", "padding", "bias", "lengths")
_KIND_WEIGHTS = (5, 8, 2, 2, 2, 2)
# The least length and the depths of layers, by whether they are float32.
_LEAST = {False: 128, True: 17}
_DEPTHS = {
    False: (32, 40, 64, 64, 64, 72, 96, 128, 128, 160, 256),
    True: (8, 16, 24, 32, 32, 40, 64, 64, 64, 72, 96, 128, 128),
}
DRAWN_SIZES = ("batch", "length", "keys", "heads", "key_heads", "depth")
# The largest number of scores of a case; four float32 arrays of them take 4 GiB.
_MOST_SCORES = 2**28
_CPU_SCORES = 2**18
# Number of cases whose programs are compiled together and whose arrays share the memory.
_PART = 5


def drawn_cases(count: int, seed: int) -> Iterable[Case]:
    """Random cases, alternately forward and with gradients: in 16 bits, then in float32."""
    most = _CPU_SCORES if jax.default_backend() == "cpu" else _MOST_SCORES
    for is_wide in (False, True):
        draw = random.Random(seed)
        for i in range(count):
            (kind,) = draw.choices(KINDS, _KIND_WEIGHTS)
            sizes = _sizes(draw, most, is_wide)
            if kind in ("mask", "padding", "bias"):  # cuDNN needs even lengths
                sizes["length"], sizes["keys"] = sizes["length"] & ~1, sizes["keys"] & ~1
            dtype = "bfloat16" if draw.random() < 0.7 else "float16"
            about = {"group": "drawn", "dtype": "float32" if is_wide else dtype}
            about |= {"direction": ("fwd", "both")[i % 2], "kind": kind}
            yield {**about, **sizes, "part": i // _PART + count * is_wide}


def _sizes(draw: random.Random, most: int, is_wide: bool) -> dict[str, int]:
    def between(low: int, high: int) -> int:
        return round(low * (high / low) ** draw.random())

    def length() -> int:
        drawn = between(_LEAST[is_wide], 8192)
        if draw.random() < 0.25:
            return drawn | 1
        return drawn if drawn < 128 else drawn // 64 * 64

    t = length()
    s = t if draw.random() < 0.8 else length()
    while t * s > most:
        t, s = t // 2, s // 2
    batch, heads = between(1, 64), between(1, 32)
    groups = draw.choice((1, 1, 1, 2, 4, 8))
    key_heads = max(1, heads // groups)
    heads = key_heads * groups if heads >= groups else heads
    while batch > 1 and batch * heads * t * s > most:
        batch = batch // 2
    while heads * t * s > most:
        heads, key_heads = heads // key_heads, 1
        heads = max(1, heads // 2) if heads * t * s > most else heads
    sizes = (batch, t, s, heads, key_heads, draw.choice(_DEPTHS[is_wide]))
    return dict(zip(DRAWN_SIZES, sizes, strict=True))
