"""The derivatives of row kernels, of every order and mode.

Reverse mode saves one array, the result y of a forward kernel or its operand x. The JVP is linear in
the tangents; where it has no kernel of its own, plain JAX computes it. Its transpose is a kernel.

Owns: the rules that make kernels each other's derivatives. Must not know: which operations exist.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad

from jaxkernels._rows import calls
from jaxkernels._rows.contract import RowKernel


def define_derivatives(
    forward: RowKernel,
    jvp: RowKernel,
    grad: RowKernel,
    *,
    keeps_x: Callable[[Any], bool] = lambda dtype: False,
) -> None:
    """Gives `forward` its derivatives of every order and mode.

    J is the Jacobian of y = forward(x), as a function of y: jvp(y, dx) = J dx and grad(y, dy) = J^T dy.
    Both are linear in their second operand and are each other's transpose. If J is symmetric, they are
    the same kernel. Reverse mode saves only y, or only x for dtypes (`keeps_x`) whose kernels read x.
    """

    def tangent_of(y: Any, operands: Any, tangents: Any, **params: Any) -> jax.Array:
        (x,) = operands
        return jvp(x if keeps_x(x.dtype) else y, *tangents, **params)

    define_jvp(forward, tangent_of)
    define_linear(jvp, transpose=grad)
    define_linear(grad, transpose=jvp)


def define_jvp(
    forward: RowKernel,
    tangent_of: Callable[..., jax.Array],
    params_of_kept: Callable[..., dict[str, Any]] = dict,
) -> None:
    """Gives `forward` its first derivative.

    `tangent_of(y, operands, tangents, **params)` is the tangent of y; zero tangents are None.
    `params_of_kept` maps the parameters of a call to those of the call that makes the saved y, which may
    have another dtype.
    """

    def rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        kept = params_of_kept(**params)
        y = forward(*primals, **kept)
        known = [None if type(t) is ad.Zero else t for t in tangents]
        dy = tangent_of(y, primals, known, **kept)
        dtype = calls.dtype_of(forward.operation.results[0], primals[0], params)
        return y.astype(dtype), dy.astype(dtype)

    ad.primitive_jvps[forward.primitive] = rule


def define_linear(linear: RowKernel, transpose: RowKernel, variables: int = 1) -> None:
    """Defines the JVP and transpose of a kernel that is linear in its last operand.

    The other operands are residuals. JAX differentiates the reference with respect to the first
    `variables` of them, and to scales; the reference must recompute the other residuals from these.
    """

    def rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        call = functools.partial(linear, **params)
        *residuals, operand = primals
        *residual_dots, operand_dot = tangents
        result = call(*residuals, operand)
        terms = []
        if type(operand_dot) is not ad.Zero:
            terms.append(call(*residuals, operand_dot))
        specs = linear.operands_of(**params)
        moving = [
            i
            for i, dot in enumerate(residual_dots)
            if type(dot) is not ad.Zero and (i < variables or specs[i].role == "scales")
        ]
        if moving:
            plain = functools.partial(linear.plain, **params)
            _, dy = jvp_of(lambda values: plain(*values, operand), residuals, residual_dots, moving)
            terms.append(dy)
        return result, functools.reduce(jax.numpy.add, terms)

    def transposed(cotangent: Any, *operands: Any, **params: Any) -> Any:
        *kept, operand = operands
        is_zero = type(cotangent) is ad.Zero
        dx = ad.Zero(operand.aval) if is_zero else transpose(*kept, cotangent, **params)
        return *(None for _ in kept), dx

    ad.primitive_jvps[linear.primitive] = rule
    ad.primitive_transposes[linear.primitive] = transposed


def define_jvp_by_reference(
    kernel: RowKernel, prepare: Callable[..., jax.Array] = lambda x, *others: x
) -> None:
    """Gives a kernel the JVP of its reference, for kernels that are rarely differentiated.

    The JVP is taken with `prepare(*operands)` as the first operand.
    """

    def rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        def plain(operands: Sequence[jax.Array]) -> Any:
            return kernel.plain(prepare(*operands), *operands[1:], **params)

        return kernel(*primals, **params), jvp_of(plain, primals, tangents)[1]

    ad.primitive_jvps[kernel.primitive] = rule


def jvp_of(
    function: Callable[[Sequence[jax.Array]], Any],
    primals: Any,
    tangents: Any,
    moving: Sequence[int] | None = None,
) -> Any:
    """`jax.jvp` of a function of a list, for the operands `moving`; by default, all that have a tangent."""
    if moving is None:
        moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def of(*values: jax.Array) -> Any:
        operands = list(primals)
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return function(operands)

    return jax.jvp(of, [primals[i] for i in moving], [tangents[i] for i in moving])
