"""What jax.export has to be told of our targets.

Owns: the list for users, and what is promised of exported programs. Must not know: which targets
there are (`_core/registry`).
"""

from __future__ import annotations

import jax.export

from jaxkernels._attention import cudnn
from jaxkernels._core import registry


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What `jax.export.export` takes as `disabled_checks`, so that programs may call our kernels.

    JAX exports custom calls only of targets that it knows to be stable. These are the targets of all
    functions of this package, on all platforms.

    A program that version 0.1 exported runs on every later 0.1 and on every 0.2 of this package. So will
    it be from each minor version to the next. JAX has rules of its own about its part of the file: an
    older JAX may not read what a newer one wrote. A program names targets, their attributes, operations,
    tiers and rungs. Within that time

    - none of these names goes, and none gets another meaning;
    - a target whose attributes change gets another name, and the old one stays beside it;
    - a call that names no tier may take another kernel than before, so that bits may differ; the errors
      keep to the same bounds;
    - the scratch of a product is part of its call: a rung that wants more gets another name.

    An attribute, an operation, a tier or a rung that a version does not know is an error of the call,
    never ignored: nothing runs. So a program of a later version may be refused by an earlier one.

    The calls of cuDNN are among them, for `dot_product_attention(..., implementation="cudnn")`. They are
    XLA's, and nothing is promised of them. A program that names no implementation is exported without.

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
    ours = (name for names in registry.TARGETS.values() for name in names)
    targets = dict.fromkeys((*ours, *cudnn.TARGETS))
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in targets]
