"""Operands of a family, drawn on the host, and the errors of products of them.

Errors are against float64: relF = ||C - C64|| / ||C64||, and the largest |C - C64| / (|A| |B|) of an element.
"""

import numpy as np

from jaxkernels.bench.families import FAMILIES


def operands(family, m, n, k, seed=0):
    """Two float32 matrices of a family; the permutations are square."""
    rng = np.random.default_rng([seed, m, n, k])
    n = k if family.endswith("permutation") else n
    shapes = (m, k), (k, n)
    drawn = [draw(shape) for draw in (rng.standard_normal, rng.random) for shape in shapes]
    made = FAMILIES[family](np, *drawn)
    return tuple(np.ascontiguousarray(x, dtype=np.float32) for x in made)


def errors(got, a, b):
    """(relF, the largest componentwise error) of a product in float32."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    want, size = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    error = np.abs(np.asarray(got, np.float64) - want)
    # No float32 result can avoid a rounding of half the smallest subnormal number.
    error = np.maximum(error - 2.0**-150, 0)
    relative = np.linalg.norm(error) / max(np.linalg.norm(want), 2.0**-149)
    return relative, float(np.max(error / np.where(size > 0, size, 1)))
