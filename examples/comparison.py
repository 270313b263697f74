"""What several examples look at: how far two results differ, and what kernels a program calls."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp


def relative_difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two trees of arrays over the largest entry of the second.

    The largest of the whole tree: the gradient of a key's bias is 0 but for rounding, because
    softmax does not see what is added to a row, and has no scale of its own.
    """
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), ours, theirs)
    sizes = jax.tree.map(lambda b: jnp.max(jnp.abs(b)), theirs)
    return float(jnp.max(jnp.array(jax.tree.leaves(gaps)))) / float(max(jax.tree.leaves(sizes)))


def operations_of(program: str) -> list[str]:
    """Names of our row operations that a compiled program calls."""
    call = r'custom_call_target="jaxkernels_rows".* operation = \\*"(\w+?)\\*"'
    return sorted(set(re.findall(call, program)))
