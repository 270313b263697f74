"""The cross entropy of a linear layer, in chunks of rows, on one device.

For each chunk, a product computes the logits. The row kernels then reduce them to residuals, or
overwrite them with their gradient, and two products multiply the gradient by w and by x. Chunks are
independent, except that the gradients of w and bias are summed over them.

| operation | operands besides x, w, label, bias, where, scales | results |
|---|---|---|
| measures | | measures, kept |
| loss | numbers | loss |
| fwd_grad | numbers | kept, and the wanted ones of dx, dw, dbias, dscales |
| grad | kept, cotangent | the wanted ones of dx, dw, dbias, dscales |
| jvp | kept, and the nonzero ones of x_dot, w_dot, bias_dot, scales_dot | tangent |

Shapes: x (..., H), w (H, V) or (V, H), bias and where (V,). Per-row arrays have the shape (..., count): label 1,
scales 1 or 2 (temperature, cap), numbers 4, kept (the residuals) 7, measures, cotangent and tangent 4.
The loss keeps the first `members` row dimensions and is summed over the others.

Zeros pad w, bias, where and each chunk of x if the plan says so. The logits of padded classes, and of those
that `where` hides, become -inf, so that no sum counts them and their gradient is 0.

Owns: the mathematics, the order of chunks, and how these call row kernels. Must not know: primitives, devices.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxkernels._rows import calls, cross_entropy_reference, loss_measures, reference
from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows.contract import RowKernel
from jaxkernels._rows.reference import compute_dtype
from jaxkernels._sgemm import primitive as sgemm_primitive
from jaxkernels._sgemm.options import Options as ProductOptions
from jaxkernels._sgemm.options import matrix_dims
from jaxkernels.typing import Implementation

Arrays = dict[str, jax.Array]

# Names of dimensions.
CLASSES, FEATURES = "classes", "features"
# Operands that all rows share; all other operands have per-row data.
SHARED = frozenset({"w", "bias", "where", "w_dot", "bias_dot"})
# Results that are summed over rows.
SUMS = frozenset({"dw", "dbias"})


@dataclasses.dataclass(frozen=True)
class RowCalls:
    """Calls row kernels in one way.

    Attributes:
        way: "plain", plain JAX; "primitive", which JAX can differentiate, partition and export; or
            "in_place", where the gradient overwrites the logits, which JAX cannot differentiate.
        require_kernel: see `RowKernel.__call__`.
        axes: the mesh axes over which the columns of "in_place" are sharded.
    """

    way: Literal["plain", "primitive", "in_place"]
    require_kernel: bool = False
    axes: tuple[str, ...] = ()

    def __call__(self, kernel: RowKernel, *operands: jax.Array, **attributes: Any) -> Any:
        """The result of the kernel, or the list of results."""
        if self.way == "plain":
            return kernel.reference(*operands, **attributes)
        if self.way == "primitive":
            required = self.require_kernel
            return kernel(*operands, tier="auto", require_kernel=required, **attributes)
        if self.axes:
            assert kernel.in_parts is not None
            return kernel.in_parts(operands, self.axes, in_place=True, **attributes)
        aliases = {0: 0} if kernel.operation.stores_elements else None
        return calls.rows(kernel.operation, *operands, aliases=aliases, **attributes)


@dataclasses.dataclass(frozen=True)
class Options:
    """The static parameters of a call, as for `linear_cross_entropy`.

    Attributes:
        all_sums: whether the entropy or the label smoothing is needed.
        logits_dtype: dtype of the logits; None for that of x.
        algorithm: that of float32 products, if its scratch fits into `max_bytes`.
    """

    trans_w: bool = False
    all_sums: bool = False
    logits_dtype: Literal["float32"] | None = None
    max_bytes: int | None = None
    implementation: Implementation | None = None
    algorithm: str = "auto"


@dataclasses.dataclass(frozen=True)
class Call:
    """The static parameters of an operation: its name, and those of its operands and results, in order.

    The loss keeps the first `members` row dimensions, which are vmapped.
    """

    operation: str
    names: tuple[str, ...]
    wanted: tuple[str, ...]
    options: Options
    members: int = 0

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """A value for each operand, by its name."""
        return dict(zip(self.names, values, strict=True))

    def dims(self, name: str, rank: int = 1) -> list[str]:
        """The names of the dimensions of an operand or a result, if x has `rank` row dimensions."""
        rows = [f"row{i}" for i in range(rank)]
        if name == "loss":
            return rows[: self.members]
        of = name.removeprefix("d").removesuffix("_dot")
        if of == "w":
            return [CLASSES, FEATURES] if self.options.trans_w else [FEATURES, CLASSES]
        if of in ("bias", "where"):
            return [CLASSES]
        return [*rows, FEATURES if of == "x" else f"numbers_of_{of}"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The part of a plan that decides how an operation is computed."""

    chunk_rows: int | None = None  # None: one chunk has all rows
    pad_features: int = 0
    pad_classes: int = 0
    algorithm: str = "auto"


def run(
    call: Call, operands: Sequence[jax.Array], rows: RowCalls, layout: Layout
) -> list[jax.Array]:
    """The results of an operation."""
    given, chunk_rows = call.named(operands), layout.chunk_rows
    lead = given["x"].shape[:-1]
    count = math.prod(lead)
    piece = _Piece(call, rows, layout)
    flat = {
        name: piece.padded(name, value) if name in SHARED else value.reshape(count, value.shape[-1])
        for name, value in given.items()
    }
    if layout.pad_features or layout.pad_classes:
        # The barrier keeps XLA from padding w again in each product.
        flat["w"] = lax.optimization_barrier(flat["w"])
    if layout.pad_classes:
        devices = math.prod(lax.axis_size(axis) for axis in rows.axes)
        classes = given["w"].shape[0 if call.options.trans_w else 1]
        label = jnp.clip(flat["label"], -1, devices * classes)
        # The classes of device i begin at i times the padded number. A label beyond all classes stays beyond.
        flat["label"] = label + label // classes * layout.pad_classes
    if call.operation == "grad" and (chunk_rows is not None or "scales" in flat):
        # The barrier keeps XLA from storing the forward pass's logits of the first chunk for reuse.
        flat |= dict(zip(flat, lax.optimization_barrier(list(flat.values())), strict=True))
    found = piece(flat) if chunk_rows is None else _in_chunks(piece, flat, count, chunk_rows)
    for of, name in (("w", "dw"), ("bias", "dbias")):
        if name in found:
            whole = found[name].astype(given[of].dtype)
            found[name] = lax.slice(whole, (0,) * whole.ndim, given[of].shape)
    if call.operation in ("measures", "loss"):
        kept = found["kept"]
        found["measures"] = loss_measures.measures_of(kept, all_sums=call.options.all_sums)
    if call.operation == "loss":
        is_counted = flat["label"] >= 0
        loss = loss_measures.loss_of(is_counted, found["measures"], kept[:, :1], flat["numbers"])
        shape = lead[: call.members]
        found["loss"] = jnp.sum(loss.reshape(*shape, math.prod(lead[call.members :])), axis=-1)
    return [
        x if name in SUMS or name == "loss" else x.reshape(*lead, x.shape[-1])
        for name, x in ((name, found[name]) for name in call.wanted)
    ]


def _in_chunks(piece: Callable[..., Arrays], flat: Arrays, count: int, chunk_rows: int) -> Arrays:
    """Runs `piece` on all chunks; only the first chunk may be smaller."""
    chunks = -(-count // chunk_rows)
    first = count - (chunks - 1) * chunk_rows

    def rows_from(start: jax.Array | int, size: int) -> Arrays:
        return {
            name: x if name in SHARED else lax.dynamic_slice_in_dim(x, start, size)
            for name, x in flat.items()
        }

    def placed(whole: Arrays, found: Arrays, start: jax.Array | int) -> Arrays:
        return {
            name: x
            if name in SUMS
            else lax.dynamic_update_slice_in_dim(whole[name], x, start, axis=0)
            for name, x in found.items()
        }

    def step(i: jax.Array, whole: Arrays) -> Arrays:
        # XLA unrolls a loop of one step. The barrier keeps it from computing both chunks at once.
        i, whole = lax.optimization_barrier((i, whole))
        start = first + i * chunk_rows
        sums = {name: x for name, x in whole.items() if name in SUMS}
        return placed(whole, piece(rows_from(start, chunk_rows), sums), start)

    found = piece(rows_from(0, first), {})
    empty = {
        name: jnp.zeros((count, x.shape[-1]), x.dtype)
        for name, x in found.items()
        if name not in SUMS
    }
    return lax.fori_loop(0, chunks - 1, step, placed(empty, found, 0))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Runs an operation on one chunk; adds its sums over rows to `sums`, if given."""

    call: Call
    rows: RowCalls
    layout: Layout

    def padded(self, name: str, operand: jax.Array) -> jax.Array:
        """Pads the features and the classes of an operand."""
        pads = {FEATURES: self.layout.pad_features, CLASSES: self.layout.pad_classes}
        widths = [(0, pads.get(dim, 0)) for dim in self.call.dims(name)]
        return jnp.pad(operand, widths) if any(n for _, n in widths) else operand

    def _hidden(self, logits: jax.Array, given: Arrays) -> jax.Array:
        """Gives padded classes, and those that `where` hides, the logit -inf, in place."""
        count = self.layout.pad_classes
        if "where" in given:  # False in the padding
            logits = jnp.where(given["where"], logits, -jnp.inf)
        elif count:
            hidden = jnp.full((logits.shape[0], count), -jnp.inf, logits.dtype)
            logits = lax.dynamic_update_slice(logits, hidden, (0, logits.shape[1] - count))
        else:
            return logits
        # Without the barrier, XLA would copy the logits for the kernel that overwrites them.
        return lax.optimization_barrier(logits)

    def __call__(self, given: Arrays, sums: Arrays | None = None) -> Arrays:
        options, operation = self.call.options, self.call.operation
        all_sums = options.all_sums
        given = given | {n: self.padded(n, given[n]) for n in ("x", "x_dot") if n in given}
        x, w, label = given["x"], given["w"], given["label"]
        dtype = jnp.dtype(options.logits_dtype or x.dtype)
        logits = self._product(x, w, ProductOptions(trans_b=options.trans_w), dtype)
        if "bias" in given:
            logits = _plus(logits, given["bias"])
        if operation == "jvp":
            return {"tangent": self._tangent(given, logits)}
        # Kernels apply scales; plain JAX applies those that need gradients.
        is_scaled = "scales" in given and "dscales" not in self.call.wanted
        scaled = logits
        if "scales" in given and not is_scaled:
            scaled = reference.scaled(logits, given["scales"])
        scales = [given["scales"]] if is_scaled else []
        # A GPU kernel takes a mask or a soft cap, not both.
        by_kernel = "where" in given and not (scales and scales[0].shape[-1] > 1)
        mask = [given["where"][None]] if by_kernel else []
        scaled = scaled if by_kernel else self._hidden(scaled, given)
        of_rows = (scaled, label, *mask, *scales)
        call = functools.partial(self.rows, has_mask=by_kernel, has_scales=is_scaled)
        if operation in ("measures", "loss"):
            return {"kept": call(kernels.cross_entropy_fwd, *of_rows, all_sums=all_sums)}
        if operation == "fwd_grad":
            cotangent = given["numbers"]
            kernel = kernels.cross_entropy_fwd_grad
            dscaled, kept = call(kernel, *of_rows, cotangent, all_sums=all_sums)
            is_used = (label >= 0) & (cotangent[:, :1] != 0)
            found = {"kept": kept}
        else:
            kept, cotangent = given["kept"], given["cotangent"]
            dscaled = call(kernels.cross_entropy_grad, *of_rows, kept, cotangent)
            is_used = jnp.any(cotangent != 0, axis=-1, keepdims=True)
            found = {}
        if "where" in given and not by_kernel:  # without the mask, a hidden label has a gradient
            dscaled = jnp.where(given["where"], dscaled, 0)
        found |= self._gradients(given, logits, dscaled, is_used, is_scaled, sums)
        return {name: found[name] for name in found if name in ("kept", *self.call.wanted)}

    def _gradients(
        self,
        given: Arrays,
        logits: jax.Array,
        dscaled: jax.Array,
        is_used: jax.Array,
        is_scaled: bool,
        sums: Arrays | None,
    ) -> Arrays:
        """Backpropagates the logits' gradient to x, w, bias and scales; unused rows get zero."""
        options, wanted = self.call.options, self.call.wanted
        x, w = given["x"], given["w"]
        found = {}
        dlogits = dscaled
        if "scales" in given and not is_scaled:
            # jax.checkpoint recomputes the cap, so that vjp saves no further array of the logits' size.
            scale = jax.checkpoint(reference.scaled)
            dlogits, found["dscales"] = jax.vjp(scale, logits, given["scales"])[1](dscaled)
        wide = compute_dtype(x)
        if "dbias" in wanted:
            dbias = jnp.sum(dlogits.astype(wide), axis=0)
            found["dbias"] = dbias if not sums else sums["dbias"] + dbias
        dlogits = dlogits.astype(x.dtype)
        if "dx" in wanted:
            of = ProductOptions(trans_b=not options.trans_w)
            dx = self._product(dlogits, w, of, x.dtype)
            features = dx.shape[1] - self.layout.pad_features
            found["dx"] = jnp.where(is_used, dx[:, :features], 0)
        if "dw" in wanted:
            x = jnp.where(is_used, x, 0)  # 0 times NaN would be NaN
            pair = (dlogits, x) if options.trans_w else (x, dlogits)
            dtype = w.dtype if sums is None else wide
            of = ProductOptions(trans_a=True)
            found["dw"] = self._product(*pair, of, dtype, sums["dw"] if sums else None)
        return found

    def _tangent(self, given: Arrays, logits: jax.Array) -> jax.Array:
        """The tangents of the measures."""
        options, dtype = self.call.options, logits.dtype
        of_x = ProductOptions(trans_b=options.trans_w)
        logits_dot = jnp.zeros_like(logits)
        if "x_dot" in given:
            logits_dot += self._product(given["x_dot"], given["w"], of_x, dtype)
        if "w_dot" in given:
            logits_dot += self._product(given["x"], given["w_dot"], of_x, dtype)
        if "bias_dot" in given:
            logits_dot = _plus(logits_dot, given["bias_dot"])
        if "scales" in given:
            scales = given["scales"]
            scales_dot = given.get("scales_dot", jnp.zeros_like(scales))
            logits, logits_dot = jax.jvp(
                reference.scaled, (logits, scales), (logits_dot, scales_dot)
            )
        if "where" in given:
            logits_dot = jnp.where(given["where"], logits_dot, 0)
        logits = self._hidden(logits, given)
        return cross_entropy_reference.cross_entropy_jvp(
            logits, given["label"], given["kept"], logits_dot
        )

    def _product(
        self,
        a: jax.Array,
        b: jax.Array,
        transposed: ProductOptions,
        dtype: jnp.dtype,
        addend: jax.Array | None = None,
    ) -> jax.Array:
        """A matrix product in `dtype`, plus an optional addend; float32 operands use our kernels."""
        if a.dtype == jnp.float32 and self.call.options.implementation != "xla":
            beta = 0.0 if addend is None else 1.0
            algorithm = self.layout.algorithm
            with_factor = dataclasses.replace(transposed, beta=beta, algorithm=algorithm)
            return sgemm_primitive.multiply(a, b, addend, options=with_factor)
        (_, k), (k_of_b, _) = matrix_dims(transposed)
        product = lax.dot_general(
            *(a, b, (((k % 2,), (k_of_b % 2,)), ((), ()))),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=dtype,
        )
        return product if addend is None else addend + product


def _plus(logits: jax.Array, bias: jax.Array) -> jax.Array:
    """Adds the bias in the compute dtype."""
    wide = compute_dtype(logits)
    return (logits.astype(wide) + bias.astype(wide)[None]).astype(logits.dtype)
