"""Functions and primitives, mapped by vmap over every subset of their operands.

An operand that is not mapped is shared by all members, and its gradient is a sum over them. The same program
for each member alone, without vmap, is the truth.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from primitives import every_primitive

import jaxkernels as jk
import jaxkernels.optax
from jaxkernels._attention import flash
from jaxkernels._attention.problem import Call
from jaxkernels._rows.masked_kernels import Band

SIZES = (2, 3)  # of an outer and an inner vmap
CLASSES = 5
KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape).astype(np.float32),
    "bfloat16": lambda rng, shape: rng.standard_normal(shape).astype(jnp.bfloat16),
    "positive": lambda rng, shape: rng.uniform(0.5, 2, shape).astype(np.float32),
    "mask": lambda rng, shape: rng.random(shape) < 0.7,
    "label": lambda rng, shape: rng.integers(-1, CLASSES, shape, np.int32),
}
LOGITS, LABEL, ROWS = ("normal", (4, CLASSES)), ("label", (4,)), ("positive", (4,))
SCORES = ("normal", (2, 4, 5))
QUERY, KEY = ("normal", (1, 4, 2, 3)), ("normal", (1, 5, 2, 3))
LINEAR = (("normal", (4, 3)), ("normal", (3, CLASSES)), LABEL, ("normal", (CLASSES,)))
A, B, C, FACTOR = ("normal", (4, 3)), ("normal", (3, 5)), ("normal", (4, 5)), ("normal", ())
FLASH = Call(("q", "k", "v", "bias", "mask"), 0.5, Band(None, 0, from_end=False))


def cross_entropy(x, label, weights=None, **options):
    return jk.cross_entropy(x, label, weights=weights, label_smoothing=0.1, z_loss=0.01, **options)


def linear_cross_entropy(x, w, label, bias=None, **options):
    return jk.linear_cross_entropy(x, w, label, bias=bias, label_smoothing=0.1, **options)


def masked(scores, mask, bias):
    return jk.scaled_masked_softmax(scores, mask, bias, scale=0.5, causal=True)


# A function, and of each operand its kind and shape.
CASES = {
    "softmax": (lambda x, m: jk.softmax(x, where=m), LOGITS, ("mask", (4, 1))),
    "log_softmax": (jk.log_softmax, LOGITS),
    "logsumexp": (lambda x, b: jk.logsumexp(x, -1, b), LOGITS, ("positive", (4, 1))),
    "masked": (masked, SCORES, ("mask", (2, 4, 5)), ("normal", (2, 4, 5))),
    "masked-rows": (masked, SCORES, ("mask", (4, 5)), ("normal", (2, 1, 5))),
    "cross_entropy": (cross_entropy, LOGITS, LABEL, ROWS),
    "cross_entropy-mean": (functools.partial(cross_entropy, reduction="mean"), LOGITS, LABEL, ROWS),
    "probabilities": (cross_entropy, LOGITS, ("positive", (4, CLASSES))),
    "token_log_probs": (
        lambda x, i, t: jk.token_log_probs(x, i, temperature=t, return_entropy=True),
        *(LOGITS, LABEL, ROWS),
    ),
    "optax": (jaxkernels.optax.softmax_cross_entropy_with_integer_labels, LOGITS, LABEL),
    "linear_cross_entropy": (linear_cross_entropy, *LINEAR),
    "linear_cross_entropy-mean": (
        functools.partial(linear_cross_entropy, reduction="mean"),
        *LINEAR[:3],
    ),
    "matmul": (jk.matmul, A, B),
    "matmul-batched": (jk.matmul, ("normal", (2, 4, 3)), ("normal", (1, 3, 5))),
    "dot_general": (lambda a, b: jk.dot_general(a, b, (((0,), (1,)), ((), ()))), B, A),
    "sgemm": (lambda a, b, c, beta: jk.sgemm(a, b, c, beta=beta), A, B, C, FACTOR),
    "sgemm-alpha": (lambda a, b, alpha: jk.sgemm(a, b, alpha=alpha), A, B, FACTOR),
    "attention": (
        lambda q, k, b: jk.dot_product_attention(q, k, k, b, is_causal=True),
        *(QUERY, KEY, ("normal", (1, 2, 4, 5))),
    ),
    "attention-bfloat16": (jk.dot_product_attention, *[("bfloat16", (1, 4, 2, 3))] * 3),
    "flash": (
        lambda q, k, b, m: flash.attention((q, k, k, b, m), FLASH),
        *(QUERY, KEY, ("normal", (1, 1, 4, 5)), ("mask", (1, 2, 1, 5))),
    ),
}


def every_level(count):
    """Which operands a vmap maps: every subset; and two vmaps, of one operand and of the others."""
    for subset in itertools.product((False, True), repeat=count):
        if any(subset):
            yield (subset,)
        if sum(subset) == 1 < count:
            yield tuple(not is_mapped for is_mapped in subset), subset


def drawn(kinds, levels):
    """Operands whose first dimensions are those of the vmaps that map them, and tangents of the floating ones."""
    rng = np.random.default_rng(0)
    sizes = SIZES[-len(levels) :]
    operands = []
    for i, (kind, shape) in enumerate(kinds):
        lead = [size for level, size in zip(levels, sizes, strict=True) if level[i]]
        operands.append(KINDS[kind](rng, (*lead, *shape)))
    return operands, [np.cos(x) for x in operands if jnp.issubdtype(x.dtype, jnp.inexact)]


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
    function, *kinds = CASES[name]
    alone = jax.jit(functools.partial(derivatives, function))
    tolerance = 1e-4 if all(kind != "bfloat16" for kind, _ in kinds) else 0.03
    for levels in every_level(len(kinds)):
        operands, tangents = drawn(kinds, levels)
        together = jax.jit(functools.partial(derivatives, mapped(function, levels)))
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
    pairs = [np.stack([x, np.flip(x, -2)]) for x in operands]
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
