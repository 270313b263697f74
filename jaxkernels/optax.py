"""optax's softmax cross-entropies on this package's kernels, under optax's names.

`softmax_cross_entropy_with_integer_labels`, `softmax_cross_entropy` and `safe_softmax_cross_entropy` have
the arguments, shapes and dtypes of optax's functions, and `jaxkernels.patch_optax` replaces those.
`jaxkernels.cross_entropy` has more options: reductions, weights, smoothing, ignored rows.

optax itself is not needed.

Example:
    >>> import jax.numpy as jnp
    >>> import jaxkernels.optax
    >>> logits = jnp.array([[0.0, 0.0], [0.0, -jnp.inf]])
    >>> labels = jnp.array([1, 0])
    >>> print(jaxkernels.optax.softmax_cross_entropy_with_integer_labels(logits, labels))
    [0.6931472 0.       ]
"""

from jaxkernels._rows.optax_losses import safe_softmax_cross_entropy as safe_softmax_cross_entropy
from jaxkernels._rows.optax_losses import softmax_cross_entropy as softmax_cross_entropy
from jaxkernels._rows.optax_losses import (
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
)

__all__ = [
    "safe_softmax_cross_entropy",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]
