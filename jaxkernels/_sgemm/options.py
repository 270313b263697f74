"""The options of a matrix product. This module imports nothing of JAX."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """The static parameters of a matrix product.

    Attributes:
        trans_a: a is stored as (k, m) instead of (m, k).
        trans_b: b is stored as (n, k) instead of (k, n).
        alpha: factor of the product; with 0, a and b are not read.
        beta: factor of c; with 0, c is not read.
        algorithm: the algorithm to run; "auto" lets the plan choose.
        for_batch: batch elements may be summed in another order than if alone, if that is faster.
        require_kernel: raises at lowering on a platform without kernels, instead of running XLA's
            product.
        row_dims: the last `row_dims` batch dimensions are further rows of a, and have the size 1 in b;
            not with `trans_a`. They stay separate until the kernel call, which merges them into one tall
            matrix, so that each may be sharded.
    """

    trans_a: bool = False
    trans_b: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    algorithm: str = "auto"
    for_batch: bool = False
    require_kernel: bool = False
    row_dims: int = 0


def matrix_dims(options: Options) -> tuple[tuple[int, int], tuple[int, int]]:
    """The negative indices of the dimensions (m, k) of a and (k, n) of b."""
    return ((-1, -2) if options.trans_a else (-2, -1)), ((-1, -2) if options.trans_b else (-2, -1))
