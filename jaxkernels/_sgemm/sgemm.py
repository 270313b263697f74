"""sgemm: converts BLAS's operands, flags and factors to one matrix product.

Owns: the public function, operands of different ranks, and traced factors. Must not know: which factors
are valid (`checks`), or how a product is computed (`primitive`).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxkernels._core import eager, validate
from jaxkernels._sgemm import checks, contraction, primitive
from jaxkernels._sgemm.scale import scale
from jaxkernels.typing import Algorithm, Implementation


def sgemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: float | jax.Array = 1.0,
    beta: float | jax.Array = 0.0,
    trans_a: bool | int = False,
    trans_b: bool | int = False,
    algorithm: Algorithm | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """BLAS's sgemm: `alpha * op(a) op(b) + beta * c`, in true float32.

    The arguments have the names of `scipy.linalg.blas.sgemm`; arrays are row-major, as everywhere in
    JAX. Transposed operands are not transposed in memory. Jit it with `donate_argnames="c"` to overwrite
    c in place. Precision, platforms and transformations are those of `matmul`. Reverse mode stores a and
    b, never c.

    Example:
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> a, b, c = jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.ones((2, 4))
        >>> print(jk.sgemm(a, b, c, alpha=2.0, beta=-1.0, trans_b=True))
        [[5. 5. 5. 5.]
         [5. 5. 5. 5.]]

    Args:
        a: float32 array of shape (..., m, k), or (..., k, m) with `trans_a`.
        b: float32 array of shape (..., k, n), or (..., n, k) with `trans_b`. Leading dimensions
            broadcast.
        c: None, or a float32 array of shape (..., m, n), the shape of the result. On a mesh with
            explicit axes, only a and b decide the sharding of the result.
        alpha: factor of the product. A Python or NumPy number is compiled into the program. A JAX array
            of shape () can be differentiated and can change from call to call, and costs a pass over the
            result. 0 hides the product, as in BLAS, including a NaN in a or b. (An array of 0 hides it
            from the value only; the gradient by a still contains a NaN of b.)
        beta: factor of c, like alpha. With 0, c is not read, and a NaN in c or its tangent has no effect.
            The derivative by beta is still c.
        trans_a: 0 or False, 1 or True; 2, BLAS's conjugate transpose, is the same for real numbers.
        trans_b: like `trans_a`.
        algorithm: as for `matmul`.
        implementation: as for `matmul`.

    Returns:
        float32 array of shape (..., m, n).

    Raises:
        TypeError: operands are not float32 arrays, or factors are not real numbers.
        ValueError: shapes do not fit, factors have dimensions, a transpose flag is unknown, `beta` is
            given without c, `algorithm` or `implementation` is unknown, or an `algorithm` is given for
            XLA's product.
        NotImplementedError: as for `matmul`.

    Notes:
        To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    alpha = checks.as_factor("alpha", alpha)
    beta = checks.as_factor("beta", beta)
    if c is None and (isinstance(beta, jax.Array) or beta != 0):
        raise ValueError(f"sgemm: beta={beta!r} needs a c to multiply")
    return _sgemm(a, b, c, alpha, beta, trans_a, trans_b, algorithm, implementation)


@eager.jit_when_eager("a", "b", "c", factors=("alpha", "beta"))
def _sgemm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None,
    alpha: float | jax.Array,
    beta: float | jax.Array,
    trans_a: bool | int,
    trans_b: bool | int,
    algorithm: Algorithm | None,
    implementation: Implementation | None,
) -> jax.Array:
    """`sgemm` with checked factors: floats or arrays of shape ()."""
    a, b = checks.as_operands("sgemm", a, b)
    operands = [a, b]
    if c is not None:
        operands.append(validate.as_array("sgemm", "c", c))
    for name, x in zip("abc", operands, strict=False):
        checks.check_float32("sgemm", name, x)
    is_xlas = checks.asks_for_xla(algorithm, implementation)
    rank = max(a.ndim, b.ndim, 2)
    options = contraction.options_of(
        algorithm,
        implementation,
        trans_a=checks.flag("trans_a", trans_a),
        trans_b=checks.flag("trans_b", trans_b),
        alpha=1.0 if isinstance(alpha, jax.Array) else alpha,
        beta=0.0 if isinstance(beta, jax.Array) else beta,
    )
    for name, x in (("a", a), ("b", b)):
        if x.ndim < 2:
            raise ValueError(f"sgemm: {name} must be a matrix; got shape {x.shape}")
    operands[:2] = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    product_of = primitive.reference if is_xlas else primitive.multiply
    has_arrays = isinstance(alpha, jax.Array) or isinstance(beta, jax.Array)
    if is_xlas or has_arrays:  # raises the primitive's errors
        jax.eval_shape(functools.partial(primitive.multiply, options=options), *operands)
    if not has_arrays:
        return product_of(*operands, options=options)
    # XLA applies factors that are JAX arrays.
    without_c = dataclasses.replace(options, beta=0.0)
    result = product_of(*operands[:2], options=without_c)
    if isinstance(alpha, jax.Array):
        result = scale(alpha.astype(jnp.float32), result)
    if isinstance(beta, jax.Array):
        return result + scale(beta.astype(jnp.float32), operands[2])
    return result + beta * operands[2] if beta else result
