"""The derivatives of row kernels, of every order and mode.

Reverse mode keeps one array, the result y of a forward kernel or, of logsumexp, x. A kernel's
tangent is a linear kernel of that array and the tangents of its operands, whose transpose is a
kernel too.

Owns: how kernels become one another's derivatives. Must not know: which operations exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import ad

from jaxkernels._rows.primitive import RowKernel


def define_derivatives(forward: RowKernel, jvp: RowKernel, grad: RowKernel) -> None:
    """Gives `forward` its derivatives of every order and mode.

    With J the Jacobian of y = forward(x), as a function of y: jvp(y, dx) = J dx and grad(y, dy) =
    J^T dy. Both are linear in their second operand and each other's transpose; where J is symmetric
    they are one and the same kernel. Reverse mode keeps y and nothing else.
    """
    define_jvp(forward, lambda y, operands, tangents, **params: jvp(y, *tangents, **params))
    define_linear(jvp, transpose=grad)
    define_linear(grad, transpose=jvp)


def define_jvp(forward: RowKernel, tangent_of: Callable[..., jax.Array]) -> None:
    """Gives `forward` its first derivative.

    Args:
        forward: the kernel.
        tangent_of: from the result y, the operands, their tangents (None where there is none) and
            the parameters of the call to the tangent of y.
    """

    def rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        y = forward(*primals, **params)
        known = [None if type(t) is ad.Zero else t for t in tangents]
        return y, tangent_of(y, primals, known, **params)

    ad.primitive_jvps[forward.primitive] = rule


def define_linear(linear: RowKernel, transpose: RowKernel) -> None:
    """Gives a kernel of what was kept and an operand in which it is linear its derivatives.

    They are its transpose and, with respect to what was kept, the derivative of its reference.
    """
    ad.primitive_jvps[linear.primitive] = functools.partial(_linear_jvp, linear)
    ad.primitive_transposes[linear.primitive] = functools.partial(_transpose, transpose)


def _linear_jvp(
    linear: RowKernel,
    primals: Any,
    tangents: Any,
    *,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> tuple[Any, Any]:
    call = functools.partial(linear, tier=tier, require_kernel=require_kernel, **attributes)
    y, operand = primals
    y_dot, operand_dot = tangents
    terms = []
    if type(operand_dot) is not ad.Zero:
        terms.append(call(y, operand_dot))
    if type(y_dot) is not ad.Zero:
        terms.append(
            jax.jvp(lambda y: linear.reference(y, operand, **attributes), (y,), (y_dot,))[1]
        )
    return call(y, operand), functools.reduce(jax.numpy.add, terms)


def _transpose(transpose: RowKernel, cotangent: Any, y: Any, operand: Any, **params: Any) -> Any:
    if type(cotangent) is ad.Zero:
        return None, ad.Zero(operand.aval)
    return None, transpose(y, cotangent, **params)
