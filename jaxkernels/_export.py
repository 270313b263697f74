"""What jax.export has to be told of our targets.

Owns: the list for users. Must not know: which targets there are (`_core/registry`).
"""

from __future__ import annotations

import jax.export

from jaxkernels._core import registry


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What `jax.export.export` takes as `disabled_checks`, so that programs may call our kernels.

    JAX exports custom calls only of targets that it knows to be stable. These are the targets of all
    functions of this package, on all platforms.

    Returns:
        A check for each target.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x = jax.ShapeDtypeStruct((4, 1000), jnp.float32)
        >>> program = jax.jit(jk.softmax)
        >>> exported = jax.export.export(program, disabled_checks=jk.export_checks())(x)
        >>> exported.out_avals[0].shape
        (4, 1000)
    """
    targets = dict.fromkeys(name for names in registry.TARGETS.values() for name in names)
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in targets]
