"""Three ways to call the row kernels on a chunk of logits: by primitives, in place, or column-sharded.

Owns: these calls. Must not know: how logits are computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from jaxkernels._core import registry
from jaxkernels._rows import cross_entropy_kernels as kernels
from jaxkernels._rows import cross_entropy_reference as reference
from jaxkernels._rows.reference import compute_dtype


@runtime_checkable
class RowCalls(Protocol):
    """The functions of `cross_entropy_reference`; they may overwrite the logits."""

    def fwd(self, x: jax.Array, label: jax.Array) -> jax.Array:
        """The residuals of each row."""
        ...

    def fwd_grad(self, x: jax.Array, label: jax.Array, numbers: jax.Array) -> Sequence[jax.Array]:
        """The gradient of the weighted loss, and the residuals."""
        ...

    def grad(
        self, x: jax.Array, label: jax.Array, kept: jax.Array, cotangent: jax.Array
    ) -> jax.Array:
        """The gradient of the measures."""
        ...


@dataclasses.dataclass(frozen=True)
class Traced:
    """Calls primitives or plain JAX, which JAX can differentiate, partition and export.

    Attributes:
        all_sums: see `Options`.
        is_plain: whether it calls plain JAX.
        require_kernel: see `RowKernel.__call__`.
    """

    all_sums: bool
    is_plain: bool
    require_kernel: bool

    @property
    def _options(self) -> dict[str, Any]:
        return {} if self.is_plain else {"tier": "auto", "require_kernel": self.require_kernel}

    @property
    def _functions(self) -> Any:
        return reference if self.is_plain else kernels

    def fwd(self, x: jax.Array, label: jax.Array) -> jax.Array:
        return self._functions.cross_entropy_fwd(x, label, all_sums=self.all_sums, **self._options)

    def fwd_grad(self, x: jax.Array, label: jax.Array, numbers: jax.Array) -> Sequence[jax.Array]:
        function = self._functions.cross_entropy_fwd_grad
        return function(x, label, numbers, all_sums=self.all_sums, **self._options)

    def grad(
        self, x: jax.Array, label: jax.Array, kept: jax.Array, cotangent: jax.Array
    ) -> jax.Array:
        return self._functions.cross_entropy_grad(x, label, kept, cotangent, **self._options)


@dataclasses.dataclass(frozen=True)
class InPlace:
    """Calls the kernels directly; the gradient overwrites the logits. Not differentiable."""

    all_sums: bool

    def fwd(self, x: jax.Array, label: jax.Array) -> jax.Array:
        attributes = kernels.cross_entropy_fwd.call_attributes("auto", all_sums=self.all_sums)
        return jax.ffi.ffi_call(registry.ROWS_TARGET, _kept_of(x))(x, label, **attributes)

    def fwd_grad(self, x: jax.Array, label: jax.Array, numbers: jax.Array) -> Sequence[jax.Array]:
        attributes = kernels.cross_entropy_fwd_grad.call_attributes("auto", all_sums=self.all_sums)
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype), _kept_of(x)]
        call = jax.ffi.ffi_call(registry.ROWS_TARGET, results, input_output_aliases={0: 0})
        return call(x, label, numbers, **attributes)

    def grad(
        self, x: jax.Array, label: jax.Array, kept: jax.Array, cotangent: jax.Array
    ) -> jax.Array:
        attributes = kernels.cross_entropy_grad.call_attributes("auto")
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call(registry.ROWS_TARGET, result, input_output_aliases={0: 0})
        return call(x, label, kept, cotangent, **attributes)


@dataclasses.dataclass(frozen=True)
class InParts:
    """Calls the kernels on this device's columns of rows that are sharded over the mesh axes `axes`."""

    all_sums: bool
    axes: tuple[str, ...]

    def fwd(self, x: jax.Array, label: jax.Array) -> jax.Array:
        in_parts = kernels.cross_entropy_fwd.in_parts
        assert in_parts is not None
        return in_parts([x, label], self.axes, all_sums=self.all_sums)

    def fwd_grad(self, x: jax.Array, label: jax.Array, numbers: jax.Array) -> Sequence[jax.Array]:
        kept = self.fwd(x, label)
        return [self.grad(x, label, kept, reference.cotangent_of(label, kept, numbers)), kept]

    def grad(
        self, x: jax.Array, label: jax.Array, kept: jax.Array, cotangent: jax.Array
    ) -> jax.Array:
        own_label = kernels.label_on_device(label, x.shape[-1], self.axes)
        return InPlace(self.all_sums).grad(x, own_label, kept, cotangent)


def _kept_of(x: jax.Array) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the residuals."""
    return jax.ShapeDtypeStruct((*x.shape[:-1], len(reference.KEPT)), compute_dtype(x))
