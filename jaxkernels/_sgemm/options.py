"""What a matrix product is asked for, besides its operands. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """What a product is asked for, besides its operands.

    Attributes:
        trans_a: a is stored as (k, m) instead of (m, k).
        trans_b: b is stored as (n, k) instead of (k, n).
        alpha: factor of the product; 0 means that a and b are not read.
        beta: factor of c; 0 means that c is not read.
        algorithm: the rung of the ladder to run; "auto" lets the plan choose.
        for_batch: the members of a batch may be summed in another order than they would be alone, if
            that is faster.
        require_kernel: a platform without kernels is an error when lowering, instead of a reason to
            run XLA's own product.
        row_dims: the last so many batch dimensions are further rows of a, of size 1 in b; not with
            `trans_a`. The kernels see one tall matrix; until then the dimensions stay apart, so that
            each may be sharded.
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
    """Where (m, k) of a and (k, n) of b are, counted from the end."""
    return ((-1, -2) if options.trans_a else (-2, -1)), ((-1, -2) if options.trans_b else (-2, -1))
