"""The default algorithm of matrix products, for a `with` block or for a process.

Owns: the setting. Must not know: what an algorithm does.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import jax

from jaxkernels._core import validate
from jaxkernels.typing import Algorithm

_VARIABLE = "JAXKERNELS_ALGORITHM"
_value = os.environ.get(_VARIABLE) or None
if _value not in (None, *validate.ALGORITHMS):
    raise ValueError(
        f"the environment variable {_VARIABLE} must be one of {', '.join(validate.ALGORITHMS)}; "
        f"got {_value!r}"
    )

# The user context is part of JAX's cache keys, so a jitted function is traced again if it changes.
_chosen = jax.make_user_context(_value)


def default_algorithm(algorithm: Algorithm | None) -> AbstractContextManager[None]:
    """Inside the block, products that name no algorithm run this one, even if another is faster.

    "pipelined" selects the FFMA units, and their bits, instead of the tensor cores. The block reaches
    `dot_general` inside Flax's layers, float32 attention and linear losses, plans, and the derivatives of
    functions traced inside. Linear losses run "pipelined" if the scratch of "tensor" would not fit their
    memory bound. A function that was jitted before is traced again. Blocks nest. Outside of all blocks,
    the environment variable JAXKERNELS_ALGORITHM applies.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> with jk.default_algorithm("pipelined"):
        ...     print(jk.matmul(jnp.ones((1, 2)), jnp.ones((2, 1))))
        [[2.]]

    Args:
        algorithm: as for `matmul`. None lets the plan choose, whatever the environment variable says.

    Returns:
        A context manager without a value, for the thread that enters it.

    Raises:
        ValueError: an unknown algorithm.
    """
    validate.check_static(algorithm=algorithm)
    validate.check_choice("algorithm", algorithm, validate.ALGORITHMS)
    return _chosen(algorithm)


def current() -> str:
    """The algorithm of products without `algorithm=`."""
    return _chosen.value or "auto"
