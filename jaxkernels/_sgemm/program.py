"""float32_matmuls: runs every float32 product of a JAX function by `dot_general`.

The function is traced to a jaxpr. The equations of our product replace each `dot_general` equation in it,
and in the jaxprs that its equations hold. All other equations keep their effects, names and source lines.

Owns: the choice of products, and the rewriting of jaxprs. Must not know: how a product is computed.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax
from jax.extend import linear_util, source_info_util

from jaxkernels import checkpoint_policies
from jaxkernels._core import compat
from jaxkernels._sgemm import contraction, primitive

P = ParamSpec("P")
R = TypeVar("R")

_PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")
_PACKAGE = f"{Path(__file__).parents[1]}/"
_XLAS = "no kernel; XLA computes it at Precision.HIGHEST"
_KERNELS = ("pallas_call", "core_map", "mpmd_map", "cudnn_fusion", "ffi_call")
_KERNELS += ("custom_partitioning", "call_hi_primitive")
_SOLVERS = ("cholesky", "cholesky_update", "eig", "eigh", "geqp3", "geqrf", "hessenberg")
_SOLVERS += ("householder_product", "lu", "ormqr", "qr", "schur", "svd", "triangular_solve")
_SOLVERS += ("tridiagonal", "tridiagonal_solve")
# Other primitives that multiply, and why they do not change.
_UNCHANGED = dict.fromkeys(_KERNELS, "a kernel or custom call, whose products are not visible")
_UNCHANGED |= dict.fromkeys(_SOLVERS, "a solver; JAX's own")


class Product(NamedTuple):
    """A product in a program.

    Attributes:
        operation: name of the primitive, such as "dot_general".
        operands: types of the first two operands, such as "float32[8,16]"; empty for kernels.
        where: the functions and loops around it, and the line of its source.
        reason: why the product is unchanged; empty if jaxkernels computes it.
    """

    operation: str
    operands: tuple[str, ...]
    where: str
    reason: str

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{' '.join((self.operation, *self.operands))} in {self.where}{reason}"


@dataclasses.dataclass(frozen=True)
class ProductReport:
    """The products of a program, from `float32_matmuls.report`. It prints as a list.

    Attributes:
        taken: products that jaxkernels computes, with counts.
        left: products that jaxkernels does not compute, and solvers, kernels and custom calls, with counts.
    """

    taken: dict[Product, int]
    left: dict[Product, int]

    def __str__(self) -> str:
        lines = []
        for title, products in {"products by jaxkernels": self.taken, "left": self.left}.items():
            lines.append(f"{sum(products.values())} {title}")
            lines += [f"  {count} x {product}" for product, count in products.items()]
        return "\n".join(lines)


def _why_left(eqn: Any) -> str | None:
    """Why a product is not ours; empty if it is or becomes ours, and None for other equations."""
    name = eqn.primitive.name
    if eqn.primitive is primitive.sgemm_p:
        return ""
    if name not in _PRODUCTS:
        return _UNCHANGED.get(name)
    operands = sorted({v.aval.dtype.name for v in eqn.invars[:2]})
    result = eqn.outvars[0].aval.dtype.name
    if operands != ["float32"]:
        return f"operands of {' and '.join(operands)}"
    if result != "float32":
        return f"preferred_element_type={result}"
    precision = eqn.params["precision"]
    if isinstance(precision, (lax.DotAlgorithm, lax.DotAlgorithmPreset)):
        return f"precision={precision}"
    if name != "dot_general":
        return _XLAS
    takes = any(new.primitive is primitive.sgemm_p for new in _our_product(eqn).eqns)
    return "" if takes else _XLAS


def _our_product(eqn: Any) -> Any:
    """The jaxpr of our product for a `dot_general` equation.

    XLA's product at highest precision is in it if dimensions with explicit shardings must be merged, or
    if the equation asks for a sharding that our product does not have.
    """
    avals = (*(v.aval for v in eqn.invars), eqn.outvars[0].aval)
    return _product(eqn.ctx, *avals, eqn.params["dimension_numbers"], eqn.params["out_sharding"])


@compat.cached_by_identity
def _product(context: Any, lhs: Any, rhs: Any, result: Any, numbers: Any, out_sharding: Any) -> Any:
    def traced(out_sharding: Any) -> Any:
        def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            return contraction.dot_general(lhs, rhs, numbers, out_sharding, None, None)

        with compat.context_of(context, lhs):
            return jax.make_jaxpr(product)(lhs, rhs).jaxpr

    # JAX's derivatives name the sharding of each product, also if it has no other.
    contracted = zip((lhs, rhs), numbers[0], strict=True)
    if all(compat.aval_spec(aval)[d] is None for aval, dims in contracted for d in dims):
        ours = traced(None)
        if ours.outvars[0].aval.sharding == result.sharding:
            return ours
    return traced(out_sharding)


def _equations(eqn: Any) -> list[Any]:
    """The equations that replace one; itself if nothing changes."""
    why = _why_left(eqn)
    if why is None:
        params = {name: _parameter(name, value) for name, value in eqn.params.items()}
        changes = any(params[name] is not value for name, value in eqn.params.items())
        return [eqn.replace(params=params) if changes else eqn]
    if why not in ("", _XLAS) or eqn.primitive is primitive.sgemm_p:
        return [eqn]
    if eqn.primitive is not lax.dot_general_p:
        highest = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
        return [eqn.replace(params={**eqn.params, "precision": highest})]
    ours = _our_product(eqn)
    names = dict(zip([*ours.invars, *ours.outvars], [*eqn.invars, *eqn.outvars], strict=True))

    def renamed(variables: Sequence[Any]) -> list[Any]:
        return [
            v if isinstance(v, jex.Literal) else names.setdefault(v, jex.Var(v.aval))
            for v in variables
        ]

    place = {"source_info": eqn.source_info, "ctx": eqn.ctx}
    return [
        new.replace(invars=renamed(new.invars), outvars=renamed(new.outvars), **place)
        for new in ours.eqns
    ]


def _rewrite(jaxpr: Any) -> Any:
    """A jaxpr, closed or open, with our products; the same object if nothing changes."""
    eqns = [new for eqn in jaxpr.eqns for new in _equations(eqn)]
    if list(map(id, eqns)) == list(map(id, jaxpr.eqns)):
        return jaxpr
    if isinstance(jaxpr, jex.Jaxpr):
        return jaxpr.replace(eqns=eqns)
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns))


# JAX's caches of derivatives and programs find a jaxpr by its identity.
_rewritten = compat.cached_by_identity(_rewrite)


def _parameter(name: str, value: Any) -> Any:
    """A parameter of an equation, with our products in its jaxprs, rules and policies."""
    if hasattr(value, "eqns"):
        return _rewritten(value)
    if isinstance(value, tuple):
        parts = [_parameter(name, part) for part in value]
        is_same = list(map(id, parts)) == list(map(id, value))
        return value if is_same else getattr(value, "_make", tuple)(parts)
    if name not in _RULES or value is None:
        return value
    if isinstance(value, linear_util.WrappedFun):
        rewritten = _RULES[name](value.call_wrapped)
        return linear_util.wrap_init(rewritten, debug_info=value.debug_info)
    return _RULES[name](value)


def _thunk(thunk: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that traces a rule, and returns its jaxpr first."""

    def rewritten(*args: Any) -> tuple[Any, ...]:
        jaxpr, *others = thunk(*args)
        return _rewritten(jaxpr), *others

    return rewritten


def _rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a rule that JAX calls with arrays, symbolic zeros and other values."""

    def rewritten(*args: Any) -> Any:
        marked = _mark(args, keeps_numbers=True)
        return _unmark(_run(_of_marked(rule, keeps_numbers=True), *marked))

    return rewritten


# Rewrites of parameters that hold code but no jaxpr, by name. JAX traces rules when it uses them. A
# policy of jax.checkpoint must save our products if it saves JAX's.
_RULES: dict[str, Callable[[Any], Any]] = {
    "jvp_jaxpr_fun": _thunk,  # custom_jvp
    "fwd_jaxpr_thunk": _thunk,  # custom_vjp
    "bwd": _rule,
    "rule": _rule,  # custom_vmap
    "transpose_thunk": _thunk,  # linear_call
    "policy": checkpoint_policies._Policy,
}


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
    """A leaf that is no array, as a pytree without leaves."""

    kind: Any  # its type; a number's text, because 1 equals 1.0, and 0.0 equals -0.0
    value: Any


def _is_static(x: Any) -> bool:
    return isinstance(x, _Static)


def _mark(tree: Any, *, keeps_numbers: bool) -> Any:
    """A pytree with `_Static` in place of leaves that are no arrays, or only of those that jit refuses."""

    def mark(leaf: Any) -> Any:
        if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
            return leaf
        is_number = isinstance(leaf, (int, float, complex)) and not isinstance(leaf, np.generic)
        if keeps_numbers and is_number:
            return _Static(repr(leaf), leaf)
        return leaf if jex.valid_jaxtype(leaf) else _Static(type(leaf), leaf)

    leaves, structure = jax.tree.flatten(tree)
    marked = [mark(leaf) for leaf in leaves]
    return tree if list(map(id, marked)) == list(map(id, leaves)) else structure.unflatten(marked)


def _unmark(tree: Any) -> Any:
    """The pytree that `_mark` marked."""
    return jax.tree.map(lambda x: x.value if _is_static(x) else x, tree, is_leaf=_is_static)


def _named_as(f: Callable[..., Any], function: Any) -> Any:
    """The function with f's name, signature and file, which JAX's errors show."""
    named = functools.wraps(f)(function)
    while isinstance(f, functools.partial):
        f = f.func
    named.__name__ = named.__qualname__ = getattr(f, "__name__", type(f).__name__)
    return named


def _of_marked(f: Callable[..., Any], *, keeps_numbers: bool = False) -> Callable[..., Any]:
    """The function of marked arguments; it marks its results."""

    def of_marked(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _unmark((args, kwargs))
        return _mark(f(*args, **kwargs), keeps_numbers=keeps_numbers)

    return _named_as(f, of_marked)


def _run(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function of arrays with our products."""
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args, **kwargs)
    results = jex.jaxpr_as_fun(_rewrite(closed))(*jax.tree.leaves((args, kwargs)))
    return jax.tree.structure(shapes).unflatten(results)


def _jitted(f: Callable[..., Any], of_marked: Callable[..., Any]) -> Callable[..., Any]:
    """The function, jitted if f is not: a jit around a jitted f would hide its donations."""
    return of_marked if isinstance(f, jax.stages.Wrapped) else jax.jit(of_marked)


def _check_callable(f: Any) -> None:
    if not callable(f):
        raise TypeError(f"float32_matmuls: f must be a function; got {type(f).__name__}")


def _mark_arguments(f: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Marks Python's numbers too if a jit around the call, or f's own, chooses which are traced."""
    if isinstance(f, jax.stages.Wrapped):
        return _mark((args, kwargs), keeps_numbers=True)
    marked = _mark((args, kwargs), keeps_numbers=not compat.runs_at_once())
    try:
        hash(tuple(filter(_is_static, jax.tree.leaves(marked, is_leaf=_is_static))))
    except TypeError:
        _check_static(f, args, kwargs)
        raise
    return marked


def _check_static(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raises if an argument that is no array cannot be hashed."""
    arguments = inspect.signature(f).bind(*args, **kwargs).arguments
    marked = _mark(dict(arguments), keeps_numbers=False)
    for (name, *path), leaf in jax.tree.leaves_with_path(marked, is_leaf=_is_static):
        try:
            hash(_is_static(leaf) and leaf)
        except TypeError as error:
            place, kind = jax.tree_util.keystr(tuple(path)), type(leaf.value).__name__
            raise TypeError(
                f"float32_matmuls: argument {name.key}{place} of type {kind} is static and must be "
                "hashable"
            ) from error


def _report(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ProductReport:
    """The products of `f(*args, **kwargs)`; arguments can be `jax.ShapeDtypeStruct`."""
    _check_callable(f)
    args, kwargs = _mark_arguments(f, args, kwargs)
    closed = jax.make_jaxpr(_jitted(f, _of_marked(f)))(*args, **kwargs)
    counts = collections.Counter(_products(closed.jaxpr, ()))
    return ProductReport(
        {product: count for product, count in counts.items() if not product.reason},
        {product: count for product, count in counts.items() if product.reason},
    )


def _products(jaxpr: Any, path: tuple[str, ...], place: str = "") -> Iterator[Product]:
    """The products of a jaxpr in its order; `path` and the line `place` are around it."""
    for eqn in jaxpr.eqns:
        name, reason = eqn.primitive.name, _why_left(eqn)
        if reason is None:
            inside = (*path, " ".join([name, *filter(None, [eqn.params.get("name")])]))
            for inner in jex.jaxprs_in_params(eqn.params):
                yield from _products(inner, inside, _line(eqn) or place)
            continue
        line = _line(eqn) or place
        operands = [v.aval.str_short() for v in eqn.invars[:2] if name not in _KERNELS]
        yield Product(name, tuple(operands), " / ".join((*path, line)), reason)


def _line(eqn: Any) -> str:
    """The user's line of an equation; empty if JAX does not know it."""
    lines = source_info_util.summarize(eqn.source_info, num_frames=100).splitlines()
    return next((line for line in reversed(lines) if not line.startswith(_PACKAGE)), "")


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

    # Its jaxpr is one equation, so that `_run` does not bind the equations of f again.
    inner = _jitted(f, _of_marked(f))

    @functools.partial(_named_as, f)
    def of_marked(*args: Any, **kwargs: Any) -> Any:
        return _run(inner, *args, **kwargs)

    compiled = _jitted(f, of_marked)

    @functools.wraps(f)
    def transformed(*args: P.args, **kwargs: P.kwargs) -> R:
        marked_args, marked_kwargs = _mark_arguments(f, args, kwargs)
        run = compiled if compat.runs_at_once() else of_marked
        return _unmark(run(*marked_args, **marked_kwargs))

    return transformed
