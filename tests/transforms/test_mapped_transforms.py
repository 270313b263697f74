"""Functions and primitives, mapped by vmap over every subset of their operands.

An operand that is not mapped is shared by all members, and its gradient is a sum over them. The
same program for each member alone, without vmap, is the truth.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ON_GPU
from primitives import every_primitive
from public_functions import FUNCTIONS, Function

import jaxkernels as jk
from jaxkernels._attention import flash
from jaxkernels._attention.problem import Call
from jaxkernels._rows.masked_kernels import Band

pytestmark = pytest.mark.usefixtures("small_chunks")
SIZES = (2, 3)  # of an outer and an inner vmap
FLASH = Call(("q", "k", "v", "bias", "mask"), 0.5, Band(None, 0, from_end=False))


def mean(x, label, weights, **options):
    return jk.cross_entropy(x, label, weights=weights, reduction="mean", **options)


# Each of these is mapped as another row of the table.
LEFT_OUT = (
    "softmax-axes",
    "log_softmax-axis",
    "cross_entropy-mean",
    "cross_entropy-options",
    "linear_cross_entropy-options",
    "attention",
)
CASES = {
    **{name: function for name, function in FUNCTIONS.items() if name not in LEFT_OUT},
    "cross_entropy-mean": Function(
        functools.partial(mean, label_smoothing=0.1, z_loss=0.01),
        None,
        ("normal brc", "label br", "positive br"),
    ),
    "attention": Function(
        lambda q, k, b: jk.dot_product_attention(q, k, k, b, is_causal=True),
        None,
        ("normal bqhd", "normal bkhd", "normal 1hqk"),
    ),
    "attention-bfloat16": Function(
        jk.dot_product_attention, None, ("normal bqhd",) * 3, dtypes=("bfloat16",)
    ),
    "flash": Function(
        lambda q, k, b, m: flash.attention((q, k, k, b, m), FLASH),
        None,
        ("normal bqhd", "normal bkhd", "normal 11qk", "mask bh1k"),
    ),
}


def every_level(count):
    """Which operands a vmap maps: every subset; and two vmaps, of one operand and of the others.

    On a CPU subsets of one operand, of all but one and of all do: every two operands differ there.
    """
    for subset in itertools.product((False, True), repeat=count):
        if any(subset) and (ON_GPU or sum(subset) in (1, count - 1, count)):
            yield (subset,)
        if sum(subset) == 1 < count:
            yield tuple(not is_mapped for is_mapped in subset), subset


def drawn(function, levels):
    """Operands with the dimensions of the vmaps that map them, and tangents."""
    sizes = SIZES[-len(levels) :]
    lead = [
        tuple(size for level, size in zip(levels, sizes, strict=True) if level[i])
        for i in range(len(function.operands))
    ]
    operands = function.draw(function.dtypes[0], lead=lead)
    return operands, [np.cos(operands[i]) for i in function.moving]


def derivatives(function, operands, tangents):
    """The value, the gradient, and the gradient of its product with the tangents."""
    moving = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def loss(some):
        given = list(operands)
        for i, x in zip(moving, some, strict=True):
            given[i] = x
        found = jax.tree.leaves(function(*given))
        return sum(jnp.sum(jnp.sin(y.astype(jnp.float32))) for y in found)

    def along(some):
        value, gradient = jax.value_and_grad(loss)(some)
        pairs = zip(gradient, tangents, strict=True)
        return sum(jnp.sum(dx.astype(jnp.float32) * t) for dx, t in pairs), (value, gradient)

    second, (value, gradient) = jax.grad(along, has_aux=True)([operands[i] for i in moving])
    return value, (gradient, second)


def mapped(function, levels):
    for level in reversed(levels):
        function = jax.vmap(function, [0 if is_mapped else None for is_mapped in level])
    return function


def one_by_one(alone, operands, tangents, levels):
    """The same by a program for one member, whose results are added up."""
    moving = [i for i, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.inexact)]
    value, sums = 0.0, [[np.zeros(np.shape(t), np.float64) for t in tangents] for _ in range(2)]
    for member in itertools.product(*map(range, SIZES[-len(levels) :])):
        at = [
            tuple(k for k, level in zip(member, levels, strict=True) if level[i])
            for i in range(len(operands))
        ]
        given = [x[own] for x, own in zip(operands, at, strict=True)]
        own_tangents = [t[at[i]] for t, i in zip(tangents, moving, strict=True)]
        own_value, found = alone(given, own_tangents)
        value += own_value
        for total, own in zip(sums, found, strict=True):
            for x, y, i in zip(total, own, moving, strict=True):
                x[at[i]] += np.asarray(y, np.float64)
    return value, sums


@pytest.mark.parametrize("name", CASES)
def test_every_subset(name):
    """Value, gradient and second derivative."""
    function = CASES[name]
    alone = jax.jit(functools.partial(derivatives, function.ours))
    tolerance = 0.03 if function.dtypes[0] == "bfloat16" else 1e-4
    for levels in every_level(len(function.operands)):
        operands, tangents = drawn(function, levels)
        together = jax.jit(functools.partial(derivatives, mapped(function.ours, levels)))
        got = together(operands, tangents)
        want = one_by_one(alone, operands, tangents, levels)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            atol = tolerance * max(1.0, np.max(np.abs(b)))
            np.testing.assert_allclose(
                np.asarray(a, np.float64), b, rtol=tolerance, atol=atol, err_msg=str(levels)
            )


@every_primitive
def test_every_primitive_under_every_subset(name, call, operands):
    """Its value, also of operands that functions always map together."""
    if len(operands) > 5:  # two operands of flash attention are enough to differ
        call, operands = functools.partial(call, *operands[:-2]), operands[-2:]
    pairs = [np.stack([x, np.flip(x, -min(2, x.ndim))]) for x in operands]
    subsets = [s for s in itertools.product((0, None), repeat=len(operands)) if 0 in s]

    @jax.jit
    def of_each(*pairs):
        found = []
        for subset in subsets:
            given = [x if axis == 0 else x[0] for x, axis in zip(pairs, subset, strict=True)]
            members = [
                call(*(x[i] if axis == 0 else x for x, axis in zip(given, subset, strict=True)))
                for i in range(2)
            ]
            want = jax.tree.map(lambda *x: jnp.stack(x), *members)
            found.append((jax.vmap(call, subset)(*given), want))
        return found

    for got, want in of_each(*pairs):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0.02, atol=0.02), got, want)
