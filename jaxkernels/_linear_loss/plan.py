"""Plans of linear_cross_entropy: the number of rows of a chunk, and the memory it needs.

Owns: the public function, and the choice of chunks. Must not know: how a chunk is computed.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxkernels._core import validate
from jaxkernels._linear_loss.chunks import SUMS, Call, Layout
from jaxkernels._sgemm import default_algorithm
from jaxkernels._sgemm.options import Options
from jaxkernels._sgemm.plan import scheme_of_sgemm
from jaxkernels.typing import Device, DeviceName, Dtype, LogitsDtype, PlanPlatform

_NAME = "plan_linear_cross_entropy"

# Bytes of a chunk's logits if the user gives no bound.
_CHUNK_BYTES = 1 << 30
# Most bytes of a chunk's logits if the products are ours: "tensor" may use 4 GiB of scratch for w and the logits.
_SGEMM_CHUNK_BYTES = 2 << 30
# Rows of a chunk are a multiple of this step, so that products fill their tiles.
_ROW_STEP = 128
# Numbers per row that are stored in addition to its logits.
_ROW_NUMBERS = 40
# cuBLAS has no fast kernel for rows that begin between multiples of 16 bytes. Padded sizes are multiples of 64 elements.
_ALIGNED_BYTES = 16
_PADDED_SIZE = 64
_PADDED_PLATFORMS = ("cuda",)
# With fewer rows, copies of w and of its gradient can take longer than unaligned products lose.
_LEAST_PADDED_ROWS = 256
# A padded w and the scratch of "tensor" are not worth chunks of fewer rows.
_LEAST_CHUNK_ROWS = 512


@dataclasses.dataclass(frozen=True)
class LinearCrossEntropyPlan:
    """The chunks of a linear layer's cross-entropy. All bytes are those of one device.

    Attributes:
        rows: rows of x.
        chunk_rows: rows of a chunk; the first one may have fewer.
        chunks: the number of chunks.
        logits_bytes: the logits of a chunk, and other arrays of their size.
        sums_bytes: the float32 sums over chunks and the terms added to them; 0 for one chunk.
        scratch_bytes: scratch of float32 products on a GPU.
        row_bytes: slices of x and of its gradient, and numbers of each row.
        table_bytes: padded copies of w and of its gradient; 0 without padding.
        pad_features: zeros after the H features of x and w. Without padding, cuBLAS would be slow.
        pad_classes: hidden classes after the V classes of w.
        algorithm: that of float32 products on a GPU, as for `matmul`; "auto" lets their plans choose.
    """

    rows: int
    chunk_rows: int
    chunks: int
    logits_bytes: int
    sums_bytes: int
    scratch_bytes: int
    row_bytes: int
    table_bytes: int
    pad_features: int
    pad_classes: int
    algorithm: str

    @property
    def total_bytes(self) -> int:
        """All memory beyond operands and results."""
        of_chunk = self.logits_bytes + self.scratch_bytes + self.row_bytes
        return of_chunk + self.sums_bytes + self.table_bytes

    def __str__(self) -> str:
        """A one-line summary, then the fields."""
        chunks = f"{self.chunks} chunk{'s' if self.chunks > 1 else ''} of {self.chunk_rows} rows"
        return f"{chunks}: {self.total_bytes} bytes beyond operands and results\n{self!r}"


@dataclasses.dataclass(frozen=True)
class _Problem:
    """The input of a plan: sizes, dtypes of operands and logits, and the requested results."""

    rows: int
    features: int
    classes: int
    dtype: jnp.dtype
    logits_dtype: jnp.dtype
    trans_w: bool
    is_scaled: bool
    sums: bool
    platform: str
    algorithm: str
    device: DeviceName | Device | None = None
    pad_features: int = 0
    pad_classes: int = 0

    def padded(self) -> _Problem:
        """This problem with sizes whose rows begin at multiples of `_ALIGNED_BYTES`."""
        if self.platform not in _PADDED_PLATFORMS or self.rows < _LEAST_PADDED_ROWS:
            return self
        sizes = {"features": self.features, "classes": self.classes}
        aligned = _ALIGNED_BYTES // self.dtype.itemsize
        pads = {name: -size % _PADDED_SIZE if size % aligned else 0 for name, size in sizes.items()}
        sizes = {name: size + pads[name] for name, size in sizes.items()}
        return dataclasses.replace(self, **sizes, **{f"pad_{name}": n for name, n in pads.items()})

    @property
    def uses_sgemm(self) -> bool:
        """Whether this package's kernels compute the products."""
        return self.platform == "cuda" and self.dtype == jnp.float32 and self.algorithm != "xla"

    def of_chunk(self, chunk_rows: int) -> LinearCrossEntropyPlan:
        """The plan with chunks of `chunk_rows` rows."""
        chunks = -(-self.rows // chunk_rows)
        wide = 8 if self.dtype.itemsize == 8 else 4
        own, of_logits = self.dtype.itemsize, self.logits_dtype.itemsize
        # The gradient overwrites the logits, unless it has another dtype.
        element = of_logits + (own if own != of_logits else 0)
        if self.is_scaled:
            element += wide + of_logits
        matrix = self.features * self.classes
        sums = 0
        if chunks > 1 and self.sums:
            # Sums in the dtype of w become the result without a copy. XLA's products need a buffer of
            # their own before they are added.
            copies = (wide != own) + (not self.uses_sgemm)
            sums = wide * (copies * matrix + 2 * self.classes)
        table = 0
        if self.pad_features or self.pad_classes:
            # The sums of 16-bit operands are rounded and sliced at once.
            table = own * matrix * (2 if self.sums and (chunks == 1 or wide == own) else 1)
        return LinearCrossEntropyPlan(
            rows=self.rows,
            chunk_rows=chunk_rows,
            chunks=chunks,
            logits_bytes=chunk_rows * self.classes * element,
            sums_bytes=sums,
            scratch_bytes=self._scratch(chunk_rows),
            row_bytes=4 * own * chunk_rows * self.features + _ROW_NUMBERS * wide * self.rows,
            table_bytes=table,
            pad_features=self.pad_features,
            pad_classes=self.pad_classes,
            algorithm=self.algorithm,
        )

    def _scratch(self, chunk_rows: int) -> int:
        """The scratch of a chunk's products. XLA may keep the padded w over all chunks."""
        if not self.uses_sgemm:
            return 0
        x, logits = (chunk_rows, self.features), (chunk_rows, self.classes)
        w = (self.classes, self.features) if self.trans_w else (self.features, self.classes)
        dw_operands = (logits, x) if self.trans_w else (x, logits)
        products = (
            (x, w, Options(trans_b=self.trans_w, algorithm=self.algorithm)),
            (logits, w, Options(trans_b=not self.trans_w, algorithm=self.algorithm)),
            (*dw_operands, Options(trans_a=True, algorithm=self.algorithm)),
        )
        elements, copies = 0, 0
        for a, b, options in products:
            of = scheme_of_sgemm(a, b, options, self.device)
            elements = max(elements, of.partial_elements)
            for (rows, cols), pad in ((a, of.pad_a), (b, of.pad_b)):
                copies += rows * (cols + pad) if pad else 0
        return 4 * (elements + copies)

    def plan(self, max_bytes: int | None) -> LinearCrossEntropyPlan:
        """The fastest form whose chunks fit into `max_bytes` and are not small, else the leanest form."""
        lean = self
        if self.algorithm in ("auto", "tensor"):
            lean = dataclasses.replace(self, algorithm="pipelined")
        for fast in (self.padded(), lean.padded()):
            plan = fast.within(max_bytes)
            is_large = plan.chunks == 1 or plan.chunk_rows >= _LEAST_CHUNK_ROWS
            if is_large and (max_bytes is None or plan.total_bytes <= max_bytes):
                return plan
        plan = lean.within(max_bytes)
        if max_bytes is not None and plan.total_bytes > max_bytes:
            raise ValueError(
                f"max_bytes={max_bytes} is too little: a chunk of one row takes {plan.total_bytes} "
                f"bytes ({plan.sums_bytes} for sums over chunks), and all rows at once take "
                f"{lean.of_chunk(self.rows).total_bytes}"
            )
        return plan

    def within(self, max_bytes: int | None) -> LinearCrossEntropyPlan:
        """The plan with the fewest chunks whose memory stays within `max_bytes`, if there is one."""
        of_row, most, bound = self.of_chunk(1).logits_bytes, self.rows, max_bytes
        if self.uses_sgemm:
            most = min(most, max(_SGEMM_CHUNK_BYTES // of_row, 1))
        if bound is None:
            largest = max(_CHUNK_BYTES // of_row, 1)
            bound = self.of_chunk(min(largest, most)).total_bytes
        plan = self.of_chunk(most)
        if most == self.rows and plan.total_bytes <= bound:
            return plan

        def total(rows: int) -> int:
            return self.of_chunk(rows).total_bytes

        step = _ROW_STEP if total(_ROW_STEP) <= bound else 1
        most = bisect.bisect_right(range(step, most, step), bound, key=total) * step
        chunks = -(-self.rows // max(most, 1))
        return self.of_chunk(-(-self.rows // (chunks * step)) * step)


def plan_linear_cross_entropy(
    x_shape: Sequence[int] | int,
    w_shape: Sequence[int] | int,
    dtype: Dtype | int,
    of_dtype: Dtype | None = None,
    *,
    trans_w: bool = False,
    logits_dtype: LogitsDtype | None = None,
    is_scaled: bool = False,
    w_is_constant: bool = False,
    max_bytes: int | None = None,
    platform: PlanPlatform = "cuda",
    device: DeviceName | Device | None = None,
) -> LinearCrossEntropyPlan:
    """The chunks of rows of `linear_cross_entropy` on one device. It needs no GPU.

    `plan_linear_cross_entropy(rows, features, classes, dtype)`, with sizes instead of shapes, works too.

    Example:
        >>> import jaxkernels as jk
        >>> jk.plan_linear_cross_entropy((4096, 4096), (4096, 128256), "bfloat16").chunks
        1
        >>> plan = jk.plan_linear_cross_entropy((32768, 2560), (2560, 128256), "bfloat16")
        >>> plan.chunks, plan.sums_bytes == 4 * (2 * 2560 * 128256 + 2 * 128256)
        (8, True)

    Args:
        x_shape: shape of x, (..., H); in a sharded program, that of a device.
        w_shape: shape of w, (H, V), or (V, H) with `trans_w`; in a sharded program, that of a device.
        dtype: dtype in which x and w are multiplied: float32, bfloat16, float16 or float64.
        of_dtype: the dtype, if the first three arguments are sizes.
        trans_w: as for `linear_cross_entropy`.
        logits_dtype: as for `linear_cross_entropy`.
        is_scaled: whether XLA applies a soft cap or a temperature: for derivatives by them, or in plain JAX.
        w_is_constant: whether no gradient of w or of a bias is needed, as in the forward pass of "none".
            Then nothing is summed over chunks.
        max_bytes: as for `linear_cross_entropy`.
        platform: "cuda" or "cpu". On a GPU a float32 product is added to the sum in place.
        device: the GPU, as for `plan_softmax`.

    Returns:
        A plan that can be compared and printed. `total_bytes` is the memory of the loss and
        its gradients, not counting operands, results and the workspace of XLA's products.

    Raises:
        TypeError: shapes or sizes are not made of integers, or the dtype has no kernels.
        ValueError: shapes do not fit each other, a size is not positive, an option is unknown, or not even
            one row fits into `max_bytes`.
    """
    if isinstance(x_shape, int):
        sizes = validate.as_shape(_NAME, "sizes", (x_shape, w_shape, dtype))
        name = validate.row_dtype(_NAME, of_dtype)
    else:
        name = validate.row_dtype(_NAME, dtype)
        x = validate.as_shape(_NAME, "x_shape", x_shape)
        w = validate.as_shape(_NAME, "w_shape", w_shape)
        sizes = sizes_of(_NAME, ("x_shape", "w_shape"), x, w, trans_w)
    rows, features, classes = sizes
    if min(sizes) < 1:
        raise ValueError(f"sizes must be positive; got {rows=}, {features=}, {classes=}")
    validate.check_choice("platform", platform, get_args(PlanPlatform))
    dtypes = (jnp.dtype(name), jnp.dtype(logits_dtype_name(logits_dtype) or name))
    flags = (bool(trans_w), is_scaled, not w_is_constant)
    algorithm = default_algorithm.current()
    problem = _Problem(rows, features, classes, *dtypes, *flags, platform, algorithm, device)
    return problem.plan(as_bytes(_NAME, max_bytes))


def sizes_of(
    function: str, names: tuple[str, str], x: Sequence[Any], w: Sequence[Any], trans_w: bool
) -> tuple[Any, Any, Any]:
    """Rows, features and classes; raises ValueError if the shapes of x and w do not fit."""
    if not x or len(w) != 2 or x[-1] != w[1 if trans_w else 0]:
        stored = "(V, H) with trans_w" if trans_w else "(H, V)"
        is_other = len(x) > 0 and len(w) == 2 and x[-1] == w[0 if trans_w else 1]
        remedy = f". Write trans_w={not trans_w}" if is_other else ""
        raise ValueError(
            f"{function}: {names[0]} must be (..., H) and {names[1]} {stored}; got {x} and {w}{remedy}"
        )
    return math.prod(x[:-1]), x[-1], w[0 if trans_w else 1]


def logits_dtype_name(dtype: Any) -> Literal["float32"] | None:
    """The name of `logits_dtype`; raises ValueError for anything else than None and float32."""
    validate.check_static(logits_dtype=dtype)
    if dtype is None:
        return None
    is_number = isinstance(dtype, (jax.Array, np.ndarray, np.generic))
    with contextlib.suppress(TypeError):
        if not is_number and jnp.dtype(dtype) == jnp.float32:
            return "float32"
    raise ValueError(f"logits_dtype must be None or 'float32'; got {dtype!r}")


def as_bytes(function: str, max_bytes: Any) -> int | None:
    """`max_bytes` as an integer or None; raises TypeError for anything else."""
    try:
        return None if max_bytes is None else operator.index(max_bytes)
    except TypeError:
        raise TypeError(
            f"{function}: max_bytes must be None or an integer, a number of bytes; "
            f"got {max_bytes!r}. Write 2**30 for 1 GiB"
        ) from None


def layout(call: Call, operands: Sequence[Any], platform: str) -> Layout:
    """The layout of an operation on this device.

    Symbolic sizes (jax.export) give one chunk without padding.
    """
    given, options = call.named(operands), call.options
    if any(not isinstance(size, int) or size == 0 for x in operands for size in x.shape):
        return Layout(algorithm=options.algorithm)
    x, w = given["x"], given["w"]
    is_plain = options.implementation == "xla" or not platform
    problem = _Problem(
        rows=math.prod(x.shape[:-1]),
        features=x.shape[-1],
        classes=w.shape[0 if options.trans_w else 1],
        dtype=x.dtype,
        logits_dtype=jnp.dtype(options.logits_dtype or x.dtype),
        trans_w=options.trans_w,
        is_scaled="scales" in given and (is_plain or "dscales" in call.wanted),
        sums=not SUMS.isdisjoint(call.wanted),
        platform=platform,
        algorithm="xla" if options.implementation == "xla" else options.algorithm,
    )
    plan = problem.plan(options.max_bytes)
    chunk_rows = None if plan.chunks == 1 else plan.chunk_rows
    return Layout(chunk_rows, plan.pad_features, plan.pad_classes, plan.algorithm)
