"""Rewrites jaxprs, so that our product computes each float32 `dot_general`.

The equations of our product replace each `dot_general` equation in a jaxpr, and in the jaxprs that its equations
hold. All other equations keep their effects, names and source lines.

Owns: the choice of products, and the rewriting of jaxprs. Must not know: how a product is computed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax import lax
from jax.extend import linear_util

from jaxkernels import checkpoint_policies
from jaxkernels._core import compat
from jaxkernels._sgemm import contraction, primitive
from jaxkernels._sgemm.static_leaves import mark, of_marked, unmark

_PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")
_XLAS = "no kernel; XLA computes it at Precision.HIGHEST"
KERNELS = ("pallas_call", "core_map", "mpmd_map", "cudnn_fusion", "ffi_call")
KERNELS += ("custom_partitioning", "call_hi_primitive")
_SOLVERS = ("cholesky", "cholesky_update", "eig", "eigh", "geqp3", "geqrf", "hessenberg")
_SOLVERS += ("householder_product", "lu", "ormqr", "qr", "schur", "svd", "triangular_solve")
_SOLVERS += ("tridiagonal", "tridiagonal_solve")
# Other primitives that multiply, and why they do not change.
_UNCHANGED = dict.fromkeys(KERNELS, "a kernel or custom call, whose products are not visible")
_UNCHANGED |= dict.fromkeys(_SOLVERS, "a solver; JAX's own")


def why_left(eqn: Any) -> str | None:
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
    why = why_left(eqn)
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
        marked = mark(args, keeps_numbers=True)
        return unmark(run_rewritten(of_marked(rule, keeps_numbers=True), *marked))

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


def run_rewritten(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a function of arrays with our products."""
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args, **kwargs)
    results = jex.jaxpr_as_fun(_rewrite(closed))(*jax.tree.leaves((args, kwargs)))
    return jax.tree.structure(shapes).unflatten(results)
