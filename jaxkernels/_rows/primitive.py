"""Makes JAX primitives out of row kernels: where a kernel meets JAX's transformations.

A row kernel reduces over the last axis of its operands; all other dimensions are rows. Its full
operands have one shape and dtype; operands behind them may have dimensions of size 1 in place of
theirs (masks, biases), or are row scalars: some numbers for each row, or its label, in place of the
last dimension. A result has the full shape, or is such numbers. Such a primitive gets evaluation,
typing, batching, a lowering per platform and a rule for partitioning from `define`, and its
derivatives from `derivatives`.

Owns: the transformation rules. Must not know: what operations compute. `of_operation` reads the
table of operations and their references by name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from jaxkernels._core import compat, experimental_rules, registry, sharding
from jaxkernels._core.registry import UNBOUNDED
from jaxkernels._rows import partitioning as row_partitioning
from jaxkernels._rows import parts as row_parts
from jaxkernels._rows import plan
from jaxkernels._rows import reference as reference_functions
from jaxkernels._rows.reference import compute_dtype
from jaxkernels.typing import Operation

Reference = Callable[..., Any]
# From the attributes of a call to the operation that it is.
OperationOf = Callable[..., Operation]
# f(operands, place, **attributes) -> operands, attributes: the call of one device, given where its
# part lies in the whole arrays.
AtPlace = Callable[..., tuple[list[jax.Array], dict[str, Any]]]
# f(operands, axes, **attributes) -> results: of rows that are spread over mesh axes.
InParts = Callable[..., Any]


# The attributes of the FFI target, besides operation and tier, as they are where a kernel has none of
# them.
_WITHOUT = {
    "scale": 1.0,
    "left": -UNBOUNDED,
    "right": UNBOUNDED,
    "from_end": False,
    "has_mask": False,
    "all_sums": False,
}


def _one_row_dim(**attributes: Any) -> int:
    """Rows that do not depend on one another, nor on where they stand."""
    del attributes
    return 1


@dataclasses.dataclass(frozen=True)
class RowKernel:
    """A row kernel as a function of JAX arrays.

    Attributes:
        primitive: what JAX traces.
        reference: the same function in plain JAX, of the operands and the attributes.
        full_operands: how many operands have the full shape; the others broadcast.
        takes_label: whether the operand behind them has a column for each row, int32.
        takes: how many numbers each row has in the operands behind that.
        stores_elements: whether there is a result of the full shape.
        stores: how many numbers each row has in a result of its own, the last; 0 if there is none. A
            static argument of the reference, `wide`, says whether they have the dtype of the first
            operand or, as they do without it, the one that this is computed in.
        row_dims: from the attributes of a call to the number of last dimensions that it needs whole
            and in their order: 1, or 2 where it matters at which place of its matrix a row stands.
        operation: from the attributes of a call to the operation that it is; None if there is none,
            and the reference runs everywhere.
        at_place: what to run on a part of a matrix where it matters where it lies; None if it never
            does.
        in_parts: what to run on rows that are spread over mesh axes, f(operands, axes, **attributes);
            None for the two parts of the operation.
    """

    primitive: Primitive
    reference: Reference
    full_operands: int
    takes_label: bool
    takes: tuple[int, ...]
    stores_elements: bool
    stores: int
    row_dims: Callable[..., int]
    operation: OperationOf | None
    at_place: AtPlace | None
    in_parts: InParts | None

    @property
    def row_scalars(self) -> int:
        """How many operands behind the full ones have something for each row."""
        return self.takes_label + len(self.takes)

    def __call__(
        self, *operands: jax.Array, tier: str, require_kernel: bool, **attributes: Any
    ) -> Any:
        """Applies the kernel along the last axis.

        Args:
            operands: the full ones of shape (..., cols), all of one shape and dtype; the others
                with as many dimensions; labels of shape (..., 1); row scalars of shape (..., n), of
                that dtype or the one that it is computed in.
            tier: "auto", or the tier to force.
            require_kernel: a platform without kernels is an error when lowering, instead of a
                reason to run the reference.
            attributes: static arguments of the reference. Those that the FFI target knows are given
                to it, too.

        Returns:
            The result, or a list of both.
        """
        equal = sharding.equalize(operands, self.full_operands, self.row_scalars)
        return self.primitive.bind(*equal, tier=tier, require_kernel=require_kernel, **attributes)

    def call_attributes(self, tier: str, **attributes: Any) -> dict[str, Any]:
        """The attributes of the call of the FFI target."""
        assert self.operation is not None
        known = {name: attributes.get(name, value) for name, value in _WITHOUT.items()}
        return {"operation": self.operation(**attributes), "tier": tier, **known}


def define(
    name: str,
    reference: Reference,
    operation: OperationOf | None,
    *,
    full_operands: int,
    takes_label: bool = False,
    takes: tuple[int, ...] = (),
    stores_elements: bool = True,
    stores: int = 0,
    in_place: bool = False,
    row_dims: Callable[..., int] = _one_row_dim,
    at_place: AtPlace | None = None,
    in_parts: InParts | None = None,
) -> RowKernel:
    """Makes the primitive of a row kernel; everything but its derivatives.

    Args:
        name: name of the primitive, seen in jaxprs.
        reference: plain-JAX function of the operands, over the last axis; runs where there are no
            kernels.
        operation: see `RowKernel`.
        full_operands: see `RowKernel`.
        takes_label: see `RowKernel`.
        takes: see `RowKernel`.
        stores_elements: see `RowKernel`.
        stores: see `RowKernel`.
        in_place: whether the result of the full shape takes the memory of the first operand where the
            caller of the program has given that away.
        row_dims: see `RowKernel`.
        at_place: see `RowKernel`; needed if `row_dims` may be 2.
        in_parts: see `RowKernel`.

    Returns:
        The kernel, ready to be called on any number of dimensions >= 1.
    """
    primitive = Primitive(name)
    primitive.multiple_results = stores_elements and stores > 0
    kernel = RowKernel(
        *(primitive, reference, full_operands, takes_label, takes, stores_elements, stores),
        *(row_dims, operation, at_place, in_parts),
    )
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(_abstract_eval, kernel))
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, kernel)
    lowered = _in_place(kernel) if in_place else primitive
    mlir.register_lowering(lowered, functools.partial(_lower_reference, kernel))
    for platform in ("cpu", "cuda"):
        if operation is not None and registry.has_kernels(platform):
            rule = functools.partial(_lower_kernel, kernel, platform, {})
            mlir.register_lowering(lowered, rule, platform=platform)
    compat.needs_devices_for_lowering(primitive)
    experimental_rules.define_rules(primitive, functools.partial(_reference, kernel))
    return kernel


def _in_place(kernel: RowKernel) -> Primitive:
    """Lets a kernel write over an operand that is given away, and returns what is lowered where it may not.

    A lowering is cached as a function of its own, which nobody gives memory to. So that of the kernel is
    not cached, has one rule for all platforms (JAX lowers no other for several at once), and leaves
    everything else to a second primitive, whose lowering is.
    """
    plain = Primitive(kernel.primitive.name)
    plain.multiple_results = kernel.primitive.multiple_results
    plain.def_abstract_eval(functools.partial(_abstract_eval, kernel))
    compat.needs_devices_for_lowering(plain)

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        platform, *others = compat.lowering_platforms(ctx)
        if not others and registry.has_kernels(platform) and compat.is_donated(operands[0]):
            return _lower_kernel(kernel, platform, {0: 0}, ctx, *operands, **params)
        function = functools.partial(plain.bind, **params)
        return mlir.lower_fun(function, multiple_results=plain.multiple_results)(ctx, *operands)

    mlir.register_lowering(kernel.primitive, rule, cacheable=False)
    return plain


def of_operation(
    operation: Operation, reference: Reference | None = None, in_parts: InParts | None = None
) -> RowKernel:
    """Makes the primitive of an operation that has no attributes but those of row scalars.

    Args:
        operation: its name; the rest is in the table of operations.
        reference: see `RowKernel`; None for the function of that name in `reference`.
        in_parts: see `RowKernel`.
    """
    traits = registry.ROW_OPERATIONS[operation]
    return define(
        name=f"jaxkernels_{operation}",
        reference=reference or getattr(reference_functions, operation),
        operation=lambda **_: operation,
        full_operands=traits.inputs,
        takes_label=traits.takes_label,
        takes=tuple(filter(None, traits.takes)),
        stores_elements=traits.stores_elements,
        stores=traits.stores,
        in_place=traits.stores_elements and traits.takes_label,
        in_parts=in_parts,
    )


def _reference(
    kernel: RowKernel, *operands: jax.Array, tier: str, require_kernel: bool, **attributes: Any
) -> Any:
    """The reference as a function of all parameters of the primitive."""
    del tier, require_kernel
    return kernel.reference(*operands, **attributes)


def _abstract_eval(
    kernel: RowKernel,
    *avals: Any,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> Any:
    del require_kernel
    first, name = avals[0], kernel.primitive.name
    if any((a.shape, a.dtype) != (first.shape, first.dtype) for a in avals[: kernel.full_operands]):
        raise TypeError(f"{name}: operands must agree in shape and dtype, got {avals}")
    scalars = avals[kernel.full_operands :][: kernel.row_scalars]
    expected = [(1, {jax.numpy.dtype("int32")})] if kernel.takes_label else []
    expected += [(size, {first.dtype, compute_dtype(first)}) for size in kernel.takes]
    for aval, (size, dtypes) in zip(scalars, expected, strict=True):
        if aval.shape != (*first.shape[:-1], size) or aval.dtype not in dtypes:
            raise TypeError(f"{name}: row scalars must be {size} for each row, got {avals}")
    if kernel.operation is not None:
        plan.check_tier(kernel.operation(**attributes), first.shape, first.dtype, tier)
    # `update` keeps what a fresh ShapedArray would lose: explicit sharding and the mesh axes it
    # varies over.
    results = [first.update(weak_type=False)] if kernel.stores_elements else []
    if kernel.stores > 0:
        shape = (*first.shape[:-1], kernel.stores)
        spec = (*compat.aval_spec(first)[:-1], None)
        dtype = _dtype_of_scalars(first, attributes)
        results.append(compat.with_shape_and_spec(first, shape, spec).update(dtype=dtype))
    return results if kernel.primitive.multiple_results else results[0]


def _dtype_of_scalars(first: Any, attributes: dict[str, Any]) -> Any:
    """The dtype of the row scalars that a kernel stores."""
    return compute_dtype(first) if attributes.get("wide", True) else first.dtype


def _batch(
    kernel: RowKernel,
    axis_data: Any,
    operands: Sequence[jax.Array],
    batch_dims: Sequence[int | None],
    *,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> tuple[Any, Any]:
    call = functools.partial(kernel, tier=tier, require_kernel=require_kernel, **attributes)
    several = kernel.primitive.multiple_results
    full = kernel.full_operands + kernel.row_scalars  # a number for each row, and so each member
    if all(d is None for d in batch_dims):
        return call(*operands), (None, None) if several else None
    # A batch dimension is one more dimension of rows wherever it stands, unless it stands among
    # those that the kernel needs whole.
    at = batch_dims[0] or 0
    among_rows = at < operands[0].ndim - kernel.row_dims(**attributes)
    if set(batch_dims[:full]) != {at} or not among_rows:
        at = 0
        operands = [
            compat.batch_at_front(axis_data, x, d) if i < full or d is not None else x
            for i, (x, d) in enumerate(zip(operands, batch_dims, strict=True))
        ]
        batch_dims = [0 if i < full or d is not None else None for i, d in enumerate(batch_dims)]
    placed = [
        jax.numpy.expand_dims(x, at) if d is None else jax.numpy.moveaxis(x, d, at)
        for x, d in zip(operands, batch_dims, strict=True)
    ]
    return call(*placed), (at, at) if several else at


def _lower_kernel(
    kernel: RowKernel,
    platform: str,
    aliases: dict[int, int],
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> Any:
    del require_kernel
    name = kernel.primitive.name
    shapes = [aval.shape for aval in ctx.avals_in]  # pyright: ignore[reportAttributeAccessIssue]
    several = kernel.primitive.multiple_results
    if kernel.stores > 0 and shapes[0][-1] == 0:  # what nothing sums to needs no kernel
        reference = functools.partial(kernel.reference, **attributes)
        return mlir.lower_fun(reference, multiple_results=several)(ctx, *operands)
    if 0 not in shapes[0] and compat.partitions_custom_calls(ctx):
        call = _split_call(kernel, tier, attributes, aliases)
        function = row_partitioning.partitioned(call, shapes)
        name = f"{name} {tier} {aliases} {sorted(attributes.items())} {registry.fingerprint()}"
        return compat.lower_partitioned(function, ctx, operands, name, several)
    given = kernel.call_attributes(tier, **attributes)
    if platform == "cuda" and compat.runs_on_one_device(ctx):
        scratch = plan.scratch_of_rows(given["operation"], ctx.avals_in[0], tier)
        if scratch is not None:
            with_scratch = ctx.replace(avals_out=[*ctx.avals_out, scratch])
            rule = jax.ffi.ffi_lowering(registry.ROWS_TARGET)
            return rule(with_scratch, *operands, **given)[: len(ctx.avals_out)]
    partitioning = compat.batch_partitioning_attributes(ctx, kernel.row_dims(**attributes))
    rule = jax.ffi.ffi_lowering(
        registry.ROWS_TARGET, operand_output_aliases=aliases, extra_attributes=partitioning
    )
    return rule(ctx, *operands, **given)


def _split_call(
    kernel: RowKernel, tier: str, attributes: dict[str, Any], aliases: dict[int, int]
) -> row_partitioning.SplitCall:
    given = kernel.call_attributes(tier, **attributes)

    def whole(first: jax.Array, *others: jax.Array) -> Any:
        # Without tracing anything of it: a program may be lowered where float64 is off.
        results = []
        if kernel.stores_elements:
            results.append(jax.ShapeDtypeStruct(first.shape, first.dtype))
        if kernel.stores > 0:
            shape = (*first.shape[:-1], kernel.stores)
            results.append(jax.ShapeDtypeStruct(shape, _dtype_of_scalars(first, attributes)))
        results = results if kernel.primitive.multiple_results else results[0]
        call = jax.ffi.ffi_call(registry.ROWS_TARGET, results, input_output_aliases=aliases)
        return call(first, *others, **given)

    def in_parts(operands: Sequence[jax.Array], axes: tuple[str, ...]) -> Any:
        if kernel.in_parts is not None:
            return kernel.in_parts(operands, axes, **attributes)
        wide = attributes.get("wide", False)
        parts = row_parts.Parts(given["operation"], given["scale"], given["has_mask"], wide)
        return row_parts.apply(parts, operands, axes)

    def at_place(operands: Sequence[jax.Array], place: row_partitioning.Place) -> Any:
        assert kernel.at_place is not None
        there, attributes_there = kernel.at_place(operands, place, **attributes)
        return _split_call(kernel, tier, attributes_there, aliases), there

    depends_on_place = kernel.row_dims(**attributes) > 1
    results = (True,) * kernel.stores_elements + (False,) * (kernel.stores > 0)
    return row_partitioning.SplitCall(
        *(whole, in_parts, kernel.row_scalars, results),
        at_place if depends_on_place else None,
    )


def _lower_reference(
    kernel: RowKernel,
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    tier: str,
    require_kernel: bool,
    **attributes: Any,
) -> Any:
    del tier
    without = [p for p in compat.lowering_platforms(ctx) if not registry.has_kernels(p)]
    if kernel.operation is None:
        without = []
    if require_kernel and without:
        reasons = "; ".join(registry.why_no_kernels(platform) for platform in without)
        raise NotImplementedError(
            f'implementation="ffi": no kernel of {kernel.primitive.name} for platform '
            f"{', '.join(map(repr, without))}: {reasons}"
        )
    if "cuda" in without:
        registry.warn_missing_cuda()
    reference = functools.partial(kernel.reference, **attributes)
    several = kernel.primitive.multiple_results
    return mlir.lower_fun(reference, multiple_results=several)(ctx, *operands)
