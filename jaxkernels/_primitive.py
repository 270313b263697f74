"""Makes JAX primitives out of row kernels: where a kernel meets JAX's transformations.

A row kernel reduces over the last axis of its operands; all other dimensions are rows. All operands
and the result have the same shape and dtype. Such a primitive gets evaluation, typing, batching, a
lowering per platform and a rule for partitioning from `define`, and its derivatives from
`define_derivatives`.

Owns: the transformation rules. Must not know: which operations exist, or what they compute.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jaxkernels import _compat, _registry

Reference = Callable[..., jax.Array]
# Gets the shape, the dtype and the tier of a call when it is traced; raises if the tier cannot
# serve.
Check = Callable[[Sequence[Any], Any, str], None]


@dataclasses.dataclass(frozen=True)
class RowKernel:
    """A row kernel as a function of JAX arrays.

    Attributes:
        primitive: what JAX traces.
        reference: the same function in plain JAX.
    """

    primitive: Primitive
    reference: Reference

    def __call__(self, *operands: jax.Array, tier: str, require_kernel: bool) -> jax.Array:
        """Applies the kernel along the last axis.

        Args:
            operands: arrays of shape (..., cols), all of one shape and dtype.
            tier: "auto", or the tier to force.
            require_kernel: a platform without kernels is an error when lowering, instead of a
                reason to run the reference.
        """
        return self.primitive.bind(*_equalize(operands), tier=tier, require_kernel=require_kernel)


def equalize_varying(operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Gives all operands the device-variance of one another.

    Inside shard_map a primitive must see operands that vary over the same mesh axes. `pcast` is an
    operation of its own, with a transpose (a sum over those axes), so it belongs here, around the
    primitive, and not in its lowering.
    """
    union = frozenset[Any]().union(*(_compat.varying_axes(x) for x in operands))
    equal = []
    for x in operands:
        missing = tuple(union - _compat.varying_axes(x))
        equal.append(jax.lax.pcast(x, missing, to="varying") if missing else x)
    return equal


def _equalize(operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Gives all operands the device-variance and the explicit sharding of one another."""
    spec = _compat.explicit_spec(operands[0])
    return [
        x if _compat.explicit_spec(x) == spec else _compat.reshard(x, spec)
        for x in equalize_varying(operands)
    ]


def define(name: str, reference: Reference, target: str, check: Check) -> RowKernel:
    """Makes the primitive of a row kernel; everything but its derivatives.

    Args:
        name: name of the primitive, seen in jaxprs.
        reference: plain-JAX function of the operands, over the last axis; runs where there are no
            kernels.
        target: name of the FFI target, registered by `_registry`.
        check: called whenever the primitive is traced.

    Returns:
        The kernel, ready to be called on any number of dimensions >= 1.
    """
    primitive = Primitive(name)
    kernel = RowKernel(primitive, reference)
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(_abstract_eval, name, check))
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, kernel)
    mlir.register_lowering(primitive, functools.partial(_lower_reference, kernel))
    for platform in ("cpu", "cuda"):
        if _registry.has_kernels(platform):
            mlir.register_lowering(
                primitive, functools.partial(_lower_kernel, target), platform=platform
            )
    return kernel


def _abstract_eval(name: str, check: Check, *avals: Any, tier: str, require_kernel: bool) -> Any:
    del require_kernel
    if any((a.shape, a.dtype) != (avals[0].shape, avals[0].dtype) for a in avals):
        raise TypeError(f"{name}: operands must agree in shape and dtype, got {avals}")
    check(avals[0].shape, avals[0].dtype, tier)
    # `update` keeps what a fresh ShapedArray would lose: explicit sharding and the mesh axes it
    # varies over.
    return avals[0].update(weak_type=False)


def _batch(
    kernel: RowKernel,
    axis_data: Any,
    operands: Sequence[jax.Array],
    batch_dims: Sequence[int | None],
    **params: Any,
) -> tuple[jax.Array, int | None]:
    if all(d is None for d in batch_dims):
        return kernel(*operands, **params), None
    first = batch_dims[0]
    # A batch dimension is one more dimension of rows wherever it stands, unless it took the place
    # of the reduced one.
    if first is not None and first != operands[0].ndim - 1 and set(batch_dims) == {first}:
        return kernel(*operands, **params), first
    moved = [
        _compat.batch_at_front(axis_data, x, d) for x, d in zip(operands, batch_dims, strict=True)
    ]
    return kernel(*moved, **params), 0


def _lower_kernel(
    target: str, ctx: mlir.LoweringRuleContext, *operands: Any, tier: str, require_kernel: bool
) -> Any:
    del require_kernel
    attributes = _compat.batch_partitioning_attributes(ctx)
    rule = jax.ffi.ffi_lowering(target, extra_attributes=attributes)
    return rule(ctx, *operands, tier=tier)


def _lower_reference(
    kernel: RowKernel,
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    tier: str,
    require_kernel: bool,
) -> Any:
    del tier
    without = [p for p in _compat.lowering_platforms(ctx) if not _registry.has_kernels(p)]
    if require_kernel:
        reasons = "; ".join(_registry.why_no_kernels(platform) for platform in without)
        raise NotImplementedError(
            f'implementation="ffi": no kernel of {kernel.primitive.name} for platform '
            f"{', '.join(map(repr, without))}: {reasons}"
        )
    if "cuda" in without:
        _registry.warn_missing_cuda()
    return mlir.lower_fun(kernel.reference, multiple_results=False)(ctx, *operands)


def define_derivatives(forward: RowKernel, jvp: RowKernel, grad: RowKernel) -> None:
    """Gives `forward` its derivatives of every order and mode.

    With J the Jacobian of y = forward(x), as a function of y: jvp(y, dx) = J dx and grad(y, dy) =
    J^T dy. Both are linear in their second operand and each other's transpose; where J is symmetric
    they are one and the same kernel. Their derivatives with respect to y come from their
    references. Reverse mode keeps y and nothing else.
    """

    def forward_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        y = forward(*primals, **params)
        return y, jvp(y, *tangents, **params)

    ad.primitive_jvps[forward.primitive] = forward_jvp
    for linear, transpose in ((jvp, grad), (grad, jvp)):
        ad.primitive_jvps[linear.primitive] = functools.partial(_linear_jvp, linear)
        ad.primitive_transposes[linear.primitive] = functools.partial(_transpose, transpose)


def _linear_jvp(linear: RowKernel, primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    y, operand = primals
    y_dot, operand_dot = tangents
    terms = []
    if type(operand_dot) is not ad.Zero:
        terms.append(linear(y, operand_dot, **params))
    if type(y_dot) is not ad.Zero:
        terms.append(jax.jvp(lambda y: linear.reference(y, operand), (y,), (y_dot,))[1])
    return linear(y, operand, **params), functools.reduce(jax.numpy.add, terms)


def _transpose(transpose: RowKernel, cotangent: Any, y: Any, operand: Any, **params: Any) -> Any:
    if type(cotangent) is ad.Zero:
        return None, ad.Zero(operand.aval)
    return None, transpose(y, cotangent, **params)
