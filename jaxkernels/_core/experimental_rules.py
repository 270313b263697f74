"""Rules for the transformations that JAX has outside its core: checkify, jet and sparsify.

All primitives have them. A NaN that a primitive makes is an error for checkify; a Taylor series comes
from the primitive's reference. Sparse operands have a rule where one is given.

Owns: what these rules do. Must not know: which primitives there are, or where JAX keeps the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from jaxkernels._core import compat

Function = Callable[..., Any]


def define_rules(primitive: Primitive, reference: Function, sparse: Function | None = None) -> None:
    """Gives a primitive of one result its rules.

    Args:
        primitive: the primitive.
        reference: plain-JAX function of its operands and parameters, of the same result.
        sparse: None, or the same in operations that are known to serve sparse operands.
    """
    compat.register_nan_check(primitive)
    compat.register_jet_rule(primitive, functools.partial(_jet, primitive, reference))
    if sparse is not None:
        compat.register_sparse_rule(primitive, sparse)


def _jet(
    primitive: Primitive,
    reference: Function,
    jet: Callable[..., Any],
    primals: Sequence[jax.Array],
    series: Sequence[Sequence[jax.Array]],
    **params: Any,
) -> tuple[jax.Array, Any]:
    """The result of the primitive, and the Taylor coefficients of its reference."""
    moving = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def function_of(*values: jax.Array) -> jax.Array:
        operands = list(primals)
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return reference(*operands, **params)

    _, coefficients = jet(
        function_of,
        [primals[i] for i in moving],
        [series[i] for i in moving],
        factorial_scaled=False,
    )
    return primitive.bind(*primals, **params), coefficients
