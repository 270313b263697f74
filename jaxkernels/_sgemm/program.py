"""float32_matmuls: runs every float32 product of a JAX function by `dot_general`.

The function is traced to a jaxpr, `rewriting` replaces its products, and JAX runs the result.

Owns: the public transformation, and how it calls jit. Must not know: which products change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import jax

from jaxkernels._core import compat
from jaxkernels._sgemm.product_report import ProductReport, report_of
from jaxkernels._sgemm.rewriting import run_rewritten
from jaxkernels._sgemm.static_leaves import mark_arguments, named_as, of_marked, unmark

P = ParamSpec("P")
R = TypeVar("R")


def _jitted(f: Callable[..., Any], of_marked: Callable[..., Any]) -> Callable[..., Any]:
    """The function, jitted if f is not: a jit around a jitted f would hide its donations."""
    return of_marked if isinstance(f, jax.stages.Wrapped) else jax.jit(of_marked)


def _check_callable(f: Any) -> None:
    if not callable(f):
        raise TypeError(f"float32_matmuls: f must be a function; got {type(f).__name__}")


def _report(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ProductReport:
    """The products of `f(*args, **kwargs)`; arguments can be `jax.ShapeDtypeStruct`."""
    _check_callable(f)
    args, kwargs = mark_arguments(f, args, kwargs)
    return report_of(jax.make_jaxpr(_jitted(f, of_marked(f)))(*args, **kwargs).jaxpr)


@runtime_checkable
class _Transformation(Protocol):
    """The type of `float32_matmuls`."""

    def __call__(self, f: Callable[P, R], /) -> Callable[P, R]: ...

    def report(self, f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ProductReport: ...


def _with_report(function: Any) -> _Transformation:
    function.report = _report
    return function


@_with_report
def float32_matmuls(f: Callable[P, R], /) -> Callable[P, R]:
    """Computes the float32 products of a function in true float32, as `dot_general` does.

    One line makes a Gaussian process, a simulation or a Flax model a float32 program. The result traces
    f and runs each float32 `jax.lax.dot_general` in it by `dot_general`, with the same bits: those of
    `jnp.matmul`, `jnp.einsum` and layers, also in jit, scan, while, cond, vmap, checkpoint, shard_map,
    and the rules of custom_jvp and custom_vjp.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxkernels as jk
        >>> def loss(w, x):
        ...     return jnp.sum((x @ w) ** 2)
        >>> w, x = jnp.ones((2, 1)), jnp.ones((3, 2))
        >>> gradient = jax.jit(jk.float32_matmuls(jax.grad(loss)))
        >>> print(gradient(w, x))
        [[12.]
         [12.]]
        >>> report = jk.float32_matmuls.report(jax.grad(loss), w, x)
        >>> sum(report.taken.values()), report.left
        (2, {})

    Args:
        f: function of pytrees. Outside of `jax.jit`, it is jitted: arrays and Python's numbers are traced.
            Inside, Python's numbers are constants, as for f alone. Every other argument, such as a
            string or a function, is static and must be hashable. A jitted f keeps its static arguments
            and its donations, but each call of it outside of another `jax.jit` traces again.

    Returns:
        A function with f's signature, for all of JAX's transformations. It has no `lower`; call `jax.jit`
        on it for that. Results that are no arrays, such as functions, are returned unchanged.
        `float32_matmuls.report(f, *args, **kwargs)` returns a `ProductReport`; its arguments can be
        `jax.ShapeDtypeStruct`.

    Raises:
        TypeError: if f is not a function, or if a static argument cannot be hashed.
        TypeError, ValueError: as `jax.jit`, for other arguments.

    Notes:
        * Apply it outside of `jax.grad`, as in the example. Inside `jax.grad`, it misses products that
          JAX's own derivative rules add, such as those of Cholesky.
        * The report lists products of custom_jvp and custom_vjp rules only if f itself takes the
          derivative.
        * Products do not change if they name an algorithm (`jax.lax.DotAlgorithm`, or a preset such as
          "BF16_BF16_F32_X3") or a `preferred_element_type` other than float32, or if an operand is not
          float32. `Precision.DEFAULT`, `HIGH` and `HIGHEST` name no algorithm.
        * float32 convolutions, `jax.lax.ragged_dot`, and products with several contracted or batch
          dimensions that are sharded over explicit mesh axes get `Precision.HIGHEST`. Pallas kernels,
          custom calls and solvers do not change.
        * Policies of `jax.checkpoint` inside f save our products as they save JAX's. Around the result,
          use those of `jaxkernels.checkpoint_policies`.
        * `jax.config.update("jax_default_matmul_precision", "highest")` is the alternative: JAX's own
          products in float32.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    _check_callable(f)

    # Its jaxpr is one equation, so that `run_rewritten` does not bind the equations of f again.
    inner = _jitted(f, of_marked(f))

    @functools.partial(named_as, f)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        return run_rewritten(inner, *args, **kwargs)

    compiled = _jitted(f, rewritten)

    @functools.wraps(f)
    def transformed(*args: P.args, **kwargs: P.kwargs) -> R:
        marked_args, marked_kwargs = mark_arguments(f, args, kwargs)
        run = compiled if compat.runs_at_once() else rewritten
        return unmark(run(*marked_args, **marked_kwargs))

    return transformed
