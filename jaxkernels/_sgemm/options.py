"""The options of a matrix product. This module imports nothing of JAX."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """The static parameters of a matrix product."""

    trans_a: bool = False  # a is stored as (k, m) instead of (m, k)
    trans_b: bool = False  # b is stored as (n, k) instead of (k, n)
    alpha: float = 1.0  # factor of the product; with 0, a and b are not read
    beta: float = 0.0  # factor of c; with 0, c is not read
    algorithm: str = "auto"  # "auto" lets the plan choose
    # Batch elements may be summed in another order than if alone, if that is faster.
    for_batch: bool = False
    # Raises at lowering on a platform without kernels, instead of running XLA's product.
    require_kernel: bool = False
    # The last `row_dims` batch dimensions are further rows of a, and have the size 1 in b; not with
    # `trans_a`. The kernel call merges them into one tall matrix; until then, each may be sharded.
    row_dims: int = 0


def matrix_dims(options: Options) -> tuple[tuple[int, int], tuple[int, int]]:
    """The negative indices of the dimensions (m, k) of a and (k, n) of b."""
    return ((-1, -2) if options.trans_a else (-2, -1)), ((-1, -2) if options.trans_b else (-2, -1))
