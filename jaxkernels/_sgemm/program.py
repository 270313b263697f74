"""float32_matmuls: runs every float32 product of a JAX function by `dot_general`.

The function is traced to a jaxpr. The equations of our product replace each `dot_general` equation in it,
and in the jaxprs that its equations hold. All other equations keep their effects, names and source lines.

Owns: the choice of products, and the rewriting of jaxprs. Must not know: how a product is computed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

import jax
import jax.extend.core as jex
from jax import lax
from jax.extend import linear_util, source_info_util

from jaxkernels import checkpoint_policies
from jaxkernels._core import compat
from jaxkernels._sgemm import contraction, primitive

P = ParamSpec("P")
R = TypeVar("R")

_PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")
# Equations with products of their own, or that JAX traces when it lowers them.
_OPAQUE = {"pallas_call", "core_map", "mpmd_map", "cudnn_fusion", "ffi_call"}
_OPAQUE |= {"custom_partitioning", "call_hi_primitive"}
_XLAS = "no kernel; XLA computes it at Precision.HIGHEST"


class Product(NamedTuple):
    """A product in a program.

    Attributes:
        operation: name of JAX's primitive.
        operands: types of both operands, such as "float32[8,16]"; empty for kernels.
        where: the functions and loops around it, and the line of its source.
        reason: why `float32_matmuls` leaves it; empty if it does not.
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
        taken: the products that `dot_general` computes, and how often each is in the program.
        left: the same for all others, and for kernels and custom calls, whose products are not seen.
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
    """Why an equation is not replaced; empty if it is, and None if it is no product."""
    name = eqn.primitive.name
    if name not in _PRODUCTS:
        return "a kernel, or traced when it is lowered" if name in _OPAQUE else None
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
    if why not in ("", _XLAS):
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
        rests = []

        def traced(*arrays: Any) -> list[Any]:
            results, rest = _split(rule(*given.join(arrays)))
            rests.append(rest)
            return results

        arrays, given = _split(args)
        closed = jax.make_jaxpr(traced)(*arrays)
        return rests[0].join(jex.jaxpr_as_fun(_rewrite(closed))(*arrays))

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


@dataclasses.dataclass(frozen=True)
class _Rest:
    """A pytree without its arrays. It can be hashed if its other leaves can."""

    structure: Any
    leaves: tuple[tuple[type, Any] | None, ...]  # None in the place of an array

    def join(self, arrays: Sequence[Any]) -> Any:
        """The pytree with these arrays."""
        given = iter(arrays)
        leaves = [next(given) if leaf is None else leaf[1] for leaf in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


def _split(tree: Any) -> tuple[list[Any], _Rest]:
    """The arrays of a pytree, and the rest, which includes Python's numbers."""

    def is_array(leaf: Any) -> bool:
        is_number = type(leaf) in (bool, int, float, complex)
        return isinstance(leaf, jax.ShapeDtypeStruct) or (jex.valid_jaxtype(leaf) and not is_number)

    leaves, structure = jax.tree.flatten(tree)
    rest = tuple(None if is_array(leaf) else (type(leaf), leaf) for leaf in leaves)
    arrays = [leaf for leaf, other in zip(leaves, rest, strict=True) if other is None]
    return arrays, _Rest(structure, rest)


def _of_arrays(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the rest of its arguments and of their arrays, jitted if f is not."""

    def of(rest: _Rest, *arrays: Any) -> Any:
        args, kwargs = rest.join(arrays)
        return f(*args, **kwargs)

    of.__name__ = of.__qualname__ = getattr(f, "__name__", type(f).__name__)
    # A jit around a jitted f would hide its donations.
    return of if isinstance(f, jax.stages.Wrapped) else jax.jit(of, static_argnums=0)


def _report(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ProductReport:
    """The products of `f(*args, **kwargs)`; arguments can be `jax.ShapeDtypeStruct`."""
    arrays, rest = _split((args, kwargs))
    closed = jax.make_jaxpr(_of_arrays(f), static_argnums=0)(rest, *arrays)
    counts = collections.Counter(_products(closed.jaxpr, ()))
    return ProductReport(
        {product: count for product, count in counts.items() if not product.reason},
        {product: count for product, count in counts.items() if product.reason},
    )


def _products(jaxpr: Any, path: tuple[str, ...]) -> Iterator[Product]:
    """The products of a jaxpr in its order; `path` names what is around it."""
    for eqn in jaxpr.eqns:
        name, reason = eqn.primitive.name, _why_left(eqn)
        if reason is None:
            inside = (*path, " ".join([name, *filter(None, [eqn.params.get("name")])]))
            for inner in jex.jaxprs_in_params(eqn.params):
                yield from _products(inner, inside)
            continue
        operands = [v.aval.str_short() for v in eqn.invars[:2] if name in _PRODUCTS]
        line = source_info_util.summarize(eqn.source_info)
        yield Product(name, tuple(operands), " / ".join((*path, line)), reason)


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
        f: function of pytrees. Arrays are traced as by `jax.jit`. Every other argument, such as a Python
            number, is static and must be hashable. A jitted f keeps its static arguments and donations.

    Returns:
        A function like f, jitted if f is not, for all of JAX's transformations. Outside of `jax.jit`,
        each call costs the host more than a jitted one. `float32_matmuls.report(f, *args, **kwargs)`
        returns a `ProductReport`; its arguments can be `jax.ShapeDtypeStruct`. The products of a rule
        are in it if f differentiates.

    Raises:
        TypeError, ValueError: as `jax.jit`, for arguments and results.

    Notes:
        * Apply it outside of `jax.grad`, as in the example. Inside, it takes the products of f, their
          derivatives and the user's rules, but no product that a rule of JAX adds, as for Cholesky.
        * Products do not change if they name an algorithm (`jax.lax.DotAlgorithm`, or a preset such as
          "BF16_BF16_F32_X3") or a `preferred_element_type` other than float32, or if an operand is not
          float32. `Precision.DEFAULT`, `HIGH` and `HIGHEST` name no algorithm.
        * float32 convolutions, `jax.lax.ragged_dot`, and products of explicitly sharded dimensions that
          must be merged get `Precision.HIGHEST`. Pallas kernels, custom calls and solvers do not change.
        * Policies of `jax.checkpoint` inside f save our products as they save JAX's. Around the result,
          use those of `jaxkernels.checkpoint_policies`.
        * `jax.config.update("jax_default_matmul_precision", "highest")` is the alternative: JAX's own
          products in float32.
        * To export, pass `disabled_checks=jk.export_checks()` to `jax.export.export`.
    """
    of_arrays = _of_arrays(f)

    @functools.wraps(f)
    def transformed(*args: P.args, **kwargs: P.kwargs) -> R:
        arrays, rest = _split((args, kwargs))
        trace = jax.make_jaxpr(of_arrays, static_argnums=0, return_shape=True)
        closed, shapes = trace(rest, *arrays)
        results = jex.jaxpr_as_fun(_rewrite(closed))(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return transformed
