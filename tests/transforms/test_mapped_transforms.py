"""Functions, mapped by vmap over every subset of their operands, against plain JAX or one member after another.

An operand that is not mapped is shared by all members, and its gradient is a sum over them.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ON_GPU
from public_functions import FUNCTIONS, Function, plain_mean

import jaxkernels as jk
from jaxkernels._attention import flash
from jaxkernels._attention.problem import Call
from jaxkernels._rows.masked_kernels import Band

pytestmark = pytest.mark.usefixtures("exact_products", "small_chunks")
SIZES = (2, 3)  # of an outer and an inner vmap
FLASH = Call(("q", "k", "v", "bias", "mask"), 0.5, Band(None, 0, from_end=False))

# Each of these is mapped as another row of the table.
LEFT_OUT = (
    "softmax-axes",
    "log_softmax-axis",
    "cross_entropy-mean",
    "cross_entropy-options",
    "linear_cross_entropy-options",
)
CASES = {
    **{name: function for name, function in FUNCTIONS.items() if name not in LEFT_OUT},
    "cross_entropy-mean": Function(
        lambda x, label, weights: jk.cross_entropy(
            x, label, weights=weights, reduction="mean", label_smoothing=0.1, z_loss=0.01
        ),
        functools.partial(plain_mean, e=0.1, z=0.01),
        ("normal brc", "label br", "positive br"),
    ),
    "attention-bfloat16": Function(
        jk.dot_product_attention, None, ("normal bqhd",) * 3, dtypes=("bfloat16",)
    ),
    "flash-attention": Function(
        lambda q, k, b, m: flash.attention_p.bind(*map(jnp.asarray, (q, k, k, b, m)), call=FLASH)[
            0
        ],
        None,
        ("normal bqhd", "normal bkhd", "normal 11qk", "mask bh1k"),
    ),
}


def every_level(count):
    """Which operands a vmap maps: every subset; and two vmaps, of one operand and of the others.

    On a CPU the subset of all does: of two vmaps the inner one maps one operand, and the outer one all others.
    """
    for subset in itertools.product((False, True), repeat=count):
        if any(subset) and (ON_GPU or all(subset)):
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


def derivatives(function, operands, tangents, order=2):
    """The value, the gradient, and with order 2 the gradient of its product with the tangents."""
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

    xs = [operands[i] for i in moving]
    if order == 1:
        value, gradient = jax.value_and_grad(loss)(xs)
        return value, (gradient,)
    second, (value, gradient) = jax.grad(along, has_aux=True)(xs)
    return value, (gradient, second)


def looped(function, axes):
    """As vmap, but one member after another."""

    def of_all(*operands):
        pairs = list(zip(operands, axes, strict=True))
        count = next(len(x) for x, axis in pairs if axis == 0)
        found = [
            function(*(x if axis is None else x[i] for x, axis in pairs)) for i in range(count)
        ]
        return jax.tree.map(lambda *members: jnp.stack(members), *found)

    return of_all


def mapped(function, levels, by=jax.vmap):
    for level in reversed(levels):
        function = by(function, [0 if is_mapped else None for is_mapped in level])
    return function


def shared(levels, i):
    """The dimensions of the vmaps that do not map operand i."""
    return tuple(axis for axis, level in enumerate(levels) if not level[i])


def repeated(x, axes, count):
    """An operand with `count` dimensions of vmaps, repeated along those that it lacks."""
    x = np.expand_dims(x, axes)
    return np.broadcast_to(x, (*SIZES[-count:], *x.shape[count:]))


def of_repeated(program, function, levels, operands, tangents):
    """`derivatives` by a program that maps all operands: those of a shared operand are sums over its members."""
    axes = [shared(levels, i) for i in range(len(operands))]
    of_moving = [axes[i] for i in function.moving]
    value, found = program(
        [repeated(x, a, len(levels)) for x, a in zip(operands, axes, strict=True)],
        [repeated(t, a, len(levels)) for t, a in zip(tangents, of_moving, strict=True)],
    )
    summed = [
        [np.asarray(x, np.float64).sum(a) for x, a in zip(order, of_moving, strict=True)]
        for order in found
    ]
    return value, summed


@pytest.mark.parametrize("name", CASES)
def test_every_subset(name):
    """Value, gradient and second derivative. Two programs compute what is wanted: compiling is what costs.

    On a CPU one in four of the two vmaps has a second derivative.
    """
    function = CASES[name]
    tolerance = 0.03 if function.dtypes[0] == "bfloat16" else 1e-4
    count = len(function.operands)
    peer, by = (function.peer, jax.vmap) if function.peer else (function.ours, looped)
    wanted = [
        jax.jit(functools.partial(derivatives, mapped(peer, ((True,) * count,) * depth, by)))
        for depth in (1, 2)
    ]
    for number, levels in enumerate(every_level(count)):
        given = drawn(function, levels)
        order = 2 if ON_GPU or len(levels) == 1 or number % 4 == 0 else 1
        program = functools.partial(derivatives, mapped(function.ours, levels), order=order)
        got = jax.jit(program)(*given)
        value, orders = of_repeated(wanted[len(levels) - 1], function, levels, *given)
        want = value, orders[:order]
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            atol = tolerance * max(1.0, np.max(np.abs(b)))
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=atol, err_msg=str(levels))
