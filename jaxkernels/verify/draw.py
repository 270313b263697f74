"""Draws bundles of random problems, whose programs are compiled together, and the numbers that they run with.

A bundle depends only on the seed, its index, the operations that may be drawn, and the device, whose plans give lengths.
"""

import dataclasses
import json
from collections.abc import Sequence

import jax
import numpy as np

from jaxkernels.verify.delivery import ALONE, DELIVERIES, EAGER
from jaxkernels.verify.families import OPERATIONS, family_of
from jaxkernels.verify.problem import Arrays, Problem, Rng

PROGRAMS = 8  # programs in a bundle
# (elements of an operand, draws, probability). Most problems are small, as compilation dominates.
_SIZES = ((2500, 64, 0.85), (25_000, 12, 0.12), (250_000, 3, 0.03))
_LARGER_ON_GPU = 4
_EAGER_DRAWS = 8
_PLAIN_JAX = 0.15  # probability
_DTYPES = {"float32": 0.5, "bfloat16": 0.25, "float16": 0.25}
_WEIGHTS = {
    "softmax": 2.0,
    "log_softmax": 2.0,
    "logsumexp": 2.0,
    "rms_norm": 2.0,
    "scaled_masked_softmax": 8 / 3,
    "cross_entropy": 8 / 3,
}
# These products may have 16-bit operands; their derivatives are not drawn then.
_NARROW_PRODUCTS = ("matmul", "dot_general", "einsum", "tensordot")
# Their "xla" is this package's plain JAX; that of others is JAX's own, whose errors the bounds do not describe.
IN_PLAIN_JAX = (
    *("rms_norm", "scaled_masked_softmax", "cross_entropy", "token_log_probs"),
    *("softmax_kl_divergence", "matmul", "dot_general", "sgemm"),
)
# These operations have a result of the shape of the donated operand.
_IN_PLACE = (
    *("softmax", "log_softmax", "rms_norm", "scaled_masked_softmax"),
    *("dot_product_attention", "sgemm"),
)


def bundle(seed: int, index: int, only: tuple[str, ...] = OPERATIONS) -> list[Problem]:
    """The programs of one bundle of a run, with some of the operations."""
    rng = np.random.default_rng([seed, index])
    wide = bool(rng.random() < 0.1)
    eager = bool(rng.random() < 0.1)
    some = [x for x in only if not wide or "float64" in family_of(x).dtypes(x)]
    wide, some = (True, some) if some and wide else (False, list(only))
    places = range(2 if eager else PROGRAMS)
    return [_problem(some, wide, eager, [seed, index, place], rng) for place in places]


def _drawn(some: Sequence[str], weights: dict[str, float], rng: Rng) -> str:
    """Draws a name by its weight, 1 by default."""
    chances = np.array([weights.get(x, 1.0) for x in some])
    return str(rng.choice(some, p=chances / chances.sum()))


def _problem(operations: list[str], wide: bool, eager: bool, seed: list[int], rng: Rng) -> Problem:
    operation = _drawn(operations, _WEIGHTS, rng)
    family = family_of(operation)
    dtypes = [x for x in _DTYPES if x in family.dtypes(operation)]
    dtype = "float64" if wide else _drawn(dtypes, _DTYPES, rng)
    derivative = _drawn(family.derivatives, {"value": 3.0, "vjp": 3.0}, rng)
    if operation in _NARROW_PRODUCTS and dtype != "float32":
        derivative = "value"
    delivery = str(rng.choice([x for x in DELIVERIES if (x in EAGER) == eager]))
    if delivery == "turns":  # within a derivative nothing is outside of jit
        derivative = "value"
    if delivery == "donated" and (derivative != "value" or operation not in _IN_PLACE):
        delivery = "slices"
    members = 1 if delivery in ALONE else int(rng.integers(2, 5))
    members = 2 * max(members - 1, 2) if delivery == "nested" else members
    most, draws, _ = _SIZES[rng.choice(len(_SIZES), p=[chance for _, _, chance in _SIZES])]
    if jax.default_backend() == "gpu" and draws < _SIZES[0][1]:
        most *= _LARGER_ON_GPU
    if wide:  # long double is slow
        most //= 4
    options, how = family.choose(operation, dtype, derivative, max(most // members, 1), rng)
    # Plain JAX differentiates a loss differently where it is NaN (a label beyond the classes) or
    # infinite (no class is left).
    lacks_class = options.get("where") and (
        derivative == "jvp" or options.get("temperature") == "active"
    )
    is_beyond = options.get("beyond") and derivative != "jvp"
    is_alike = derivative == "value" or not (lacks_class or is_beyond)
    # XLA's products of 16 bits err by more than one rounding on a GPU, and have no code for some loops on a CPU.
    is_alike &= operation not in _NARROW_PRODUCTS or dtype == "float32"
    if operation in IN_PLAIN_JAX and is_alike and rng.random() < _PLAIN_JAX:
        how = "xla"
    draws = _EAGER_DRAWS if eager else draws
    called = delivery, members, draws, seed
    problem = Problem(operation, dtype, how, derivative, *called, options)
    # A round trip through JSON gives the options the types that a command line gives them.
    return Problem(**json.loads(json.dumps(dataclasses.asdict(problem))))


def numbers(problem: Problem, draw: int) -> tuple[Arrays, np.ndarray]:
    """The operands of one draw, members first, and for each member whether its sums are `alike` (see `sum_error`)."""
    family, found, more = family_of(problem.operation), [], 0
    while (i := len(found)) < problem.members:
        one, alike = family.operands(problem, problem.generator(draw, i, *[more] * (more > 0)))
        some = [x.astype(np.float64) for x in one.values() if x.dtype.kind in "fV"]
        # A map within a derivative needs finite operands: the cotangent 0 of a member must cancel its part of a sum.
        sums = len(problem.maps) > problem.outer_maps
        if not sums or all(np.isfinite(x).all() for x in some):
            found, more = [*found, (one, alike)], 0
        else:
            more += 1
    operands = {name: np.stack([x[name] for x, _ in found]) for name in found[0][0]}
    alike = np.array([alike for _, alike in found])
    for name, x in operands.items():
        of_maps = x.reshape(*problem.maps, *x.shape[1:]) if problem.maps else x
        for level, is_mapped in enumerate(problem.mapped(name)):
            if not is_mapped:
                of_maps[:] = of_maps.take([0], level)
                alike |= alike.any()
    return operands, alike
