"""The rung of products that name none: for a block, or for a whole process.

Owns: the setting. Must not know: what a rung is.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import cast

import jax

from jaxkernels._core import validate
from jaxkernels.typing import Algorithm

_VARIABLE = "JAXKERNELS_ALGORITHM"


def _from_environment() -> Algorithm | None:
    """The rung that the process was started with, or None."""
    value = os.environ.get(_VARIABLE) or None
    if value is not None and value not in validate.ALGORITHMS:
        known = ", ".join(validate.ALGORITHMS)
        raise ValueError(
            f"the environment variable {_VARIABLE} must be one of {known}; got {value!r}"
        )
    return cast("Algorithm | None", value)


# A part of the keys of JAX's caches, so that a jitted function is traced anew where it differs.
_chosen = jax.make_user_context(_from_environment())


def default_algorithm(algorithm: Algorithm | None) -> AbstractContextManager[None]:
    """Products that name no algorithm run on this rung, inside a block, also where another is faster.

    "pipelined" brings back the FFMA units, and the bits of that rung, where the plan would take the
    tensor cores.
    It reaches `dot_general` inside Flax's layers, which no caller can give an algorithm, float32
    attention, the products of derivatives of what is traced inside, and `plan_sgemm`; not
    `linear_cross_entropy`, which keeps to "pipelined" within its bound of memory. A function that was
    jitted before is traced anew. Blocks nest. The environment variable JAXKERNELS_ALGORITHM says what
    holds outside of all of them.

    Args:
        algorithm: as for `matmul`; None lets the plan choose, whatever the environment variable
            says.

    Returns:
        A context manager that gives None, for the thread that enters it.

    Raises:
        ValueError: an unknown algorithm.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> with jk.default_algorithm("pipelined"):
        ...     print(jk.matmul(jnp.ones((1, 2)), jnp.ones((2, 1))))
        [[2.]]
    """
    validate.check_static(algorithm=algorithm)
    validate.check_choice("algorithm", algorithm, validate.ALGORITHMS)
    return _chosen(algorithm)


def current() -> str:
    """What plans are asked for where a product names no algorithm."""
    chosen: Algorithm | None = _chosen.value
    return chosen or "auto"
