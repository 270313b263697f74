"""The `disabled_checks` list to pass to jax.export.

Owns: the list for users, and the compatibility promise for exported programs. Must not know: which
targets exist (`_core/registry`).
"""

from __future__ import annotations

import jax.export

from jaxkernels._attention import cudnn
from jaxkernels._core import registry


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """The `disabled_checks` list to pass to `jax.export.export`.

    JAX exports only custom calls that it knows to be stable. The list names the targets of all functions
    of this package, on all platforms.

    A program that version 0.1 exports runs on every later 0.1 and on every 0.2 of this package, and so on
    for each minor version and the next. JAX has its own rules for its part of the file: an older JAX may
    not read a file that a newer one wrote. A program names targets, their attributes, operations, tiers
    and rungs. Within that time:

    - these names stay, with the same meaning;
    - a target whose attributes change gets a new name, and the old one stays too;
    - a call that names no tier can run another kernel, so its last bits can differ within the same error
      bounds;
    - the scratch of a product is part of its call, so a rung that needs more gets a new name.

    An unknown attribute, operation, tier or rung raises an error when the call runs; it is never ignored.
    An earlier version can therefore refuse a program of a later one.

    Our flash kernels, `implementation="ffi_flash"`, also have their scratch in their calls, and run on
    GPUs of compute capability 9.0 alone. The list includes cuDNN's calls, for
    `dot_product_attention(..., implementation="cudnn")`. They belong to XLA, and we promise nothing about
    them. Programs that name no implementation export without both.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> x = jax.ShapeDtypeStruct((4, 1000), jnp.float32)
        >>> program = jax.jit(jk.softmax)
        >>> exported = jax.export.export(program, disabled_checks=jk.export_checks())(x)
        >>> exported.out_avals[0].shape
        (4, 1000)

    Returns:
        A check for each target.
    """
    ours = (name for names in registry.TARGETS.values() for name in names)
    targets = dict.fromkeys((*ours, *cudnn.targets()))
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in targets]
