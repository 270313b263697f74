"""Helpers of several examples: the difference of two results, and the kernels that a program calls."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp


def relative_difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two trees of arrays, relative to the largest entry of the second.

    The entry is the largest of the whole tree. The gradient of a key's bias is only rounding noise
    and has no scale, because adding a constant to a row does not change its softmax.
    """
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), ours, theirs)
    sizes = jax.tree.map(lambda b: jnp.max(jnp.abs(b)), theirs)
    return float(jnp.max(jnp.array(jax.tree.leaves(gaps)))) / float(max(jax.tree.leaves(sizes)))


def operations_of(program: str) -> list[str]:
    """Names of our row operations that a compiled program calls."""
    call = r'custom_call_target="jaxkernels_rows".* operation = \\*"(\w+?)\\*"'
    return sorted(set(re.findall(call, program)))
