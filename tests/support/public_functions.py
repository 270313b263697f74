"""The table of public functions: the calls that tests of transformations, shardings and flags run.

A row has a call of this package, the same call in plain JAX, and the operands. Dimensions are
letters, so that each test chooses their sizes, leaves them open, or shards them. `float32_matmuls` has
no row, because it transforms functions: tests/sgemm/test_program.py applies the transformations to it.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxkernels as jk
import jaxkernels.optax

SIZES = {"b": 2, "r": 4, "c": 5, "h": 2, "q": 4, "k": 5, "d": 3, "m": 4, "n": 5, "1": 1}
KINDS = {
    "normal": lambda rng, shape, classes: rng.standard_normal(shape),
    "positive": lambda rng, shape, classes: rng.uniform(0.5, 2, shape),
    "share": lambda rng, shape, classes: rng.uniform(0.05, 0.2, shape),
    "mask": lambda rng, shape, classes: rng.random(shape) < 0.7,
    "seen": lambda rng, shape, classes: (rng.random(shape) < 0.7) | (np.arange(shape[-1]) == 0),
    "label": lambda rng, shape, classes: rng.integers(-1, classes, shape, np.int32),
}
MOVING = ("normal", "positive", "share")
ALL_DTYPES = ("float32", "bfloat16", "float16", "float64")


def computing():
    """The public functions by name, except those that plan, patch, export or set a default."""
    others = "plan_|patch_|export_checks|default_algorithm"
    names = [name for name in jk.__all__ if not re.match(others, name)]
    found = {name: getattr(jk, name) for name in names if inspect.isfunction(getattr(jk, name))}
    return found | {f"optax.{name}": getattr(jk.optax, name) for name in jk.optax.__all__}


@dataclasses.dataclass(frozen=True)
class Function:
    """A call of a public function.

    Attributes:
        ours: the call, of all operands, and of options that select an implementation.
        peer: the same in plain JAX; None if there is none.
        operands: kind and dimensions of each, separated by a space.
        dtypes: of the operands, for which there are kernels.
        is_wide: whether results have the dtype of computation, which is at least float32.
        tolerance: largest difference of ours and peer in float32, relative to the largest value.
        closed: dimensions whose sizes an exported program must know.
    """

    ours: Callable
    peer: Callable | None
    operands: tuple[str, ...]
    dtypes: tuple[str, ...] = ALL_DTYPES
    is_wide: bool = False
    tolerance: float = 4e-6
    closed: str = ""

    @property
    def has_cpu_kernel(self):
        """Whether a CPU has a kernel of ours: a product is XLA's own there."""
        return self.dtypes != ("float32",)

    @property
    def kinds(self):
        return [operand.split(" ")[0] for operand in self.operands]

    @property
    def dims(self):
        return [operand.split(" ")[1] for operand in self.operands]

    @property
    def moving(self):
        """Places of the operands that can be differentiated."""
        return [i for i, kind in enumerate(self.kinds) if kind in MOVING]

    def draw(self, dtype="float32", seed=0, lead=None, **sizes):
        """Operands as NumPy arrays; `lead` has dimensions in front of each."""
        sizes = {**SIZES, **sizes}
        rng = np.random.default_rng(seed)
        lead = lead or [()] * len(self.operands)
        drawn = []
        for kind, dims, front in zip(self.kinds, self.dims, lead, strict=True):
            shape = (*front, *(sizes[dim] for dim in dims))
            x = KINDS[kind](rng, shape, sizes["c"])
            drawn.append(np.asarray(x, dtype) if kind in MOVING else np.asarray(x))
        return drawn

    def abstract(self, dtype="float32", **sizes):
        """Operands as shapes and dtypes, whose sizes may be open."""
        sizes = {**SIZES, **sizes}
        dtypes = {"mask": bool, "seen": bool, "label": np.int32}
        return [
            jax.ShapeDtypeStruct(tuple(sizes[dim] for dim in dims), dtypes.get(kind, dtype))
            for kind, dims in zip(self.kinds, self.dims, strict=True)
        ]

    def of_moving(self, function, operands):
        """The function of the operands that can be differentiated, and these."""

        def call(*some):
            given = list(operands)
            for i, x in zip(self.moving, some, strict=True):
                given[i] = x
            return function(*given)

        return call, [operands[i] for i in self.moving]


def alike(name, library, *first, **options):
    """A function of ours and that of another library, with the same arguments."""
    return [functools.partial(getattr(of, name), *first, **options) for of in (jk, library)]


def masked(scores, mask, bias, **options):
    return jk.scaled_masked_softmax(scores, mask, bias, scale=0.6, causal=True, **options)


def plain_masked(scores, mask, bias, is_causal=True):
    q, k = scores.shape[-2:]
    seen = mask & (jnp.tril(jnp.ones((q, k), bool), k - q) if is_causal else True)
    shown = jnp.where(seen, 0.6 * scores + bias, -1e30)
    return jnp.where(seen, jax.nn.softmax(shown, axis=-1), 0)


def plain_losses(x, label, weights=1.0, e=0.0, z=0.0, *, temperature=1.0, cap=None):
    """Cross entropy with its log-sum-exp and entropy, operation by operation."""
    if cap is not None:
        x = cap * jnp.tanh(x / cap)
    x = x / jnp.expand_dims(jnp.asarray(temperature, x.dtype), -1)
    lse = jax.nn.logsumexp(x, -1)
    log_p = x - lse[..., None]
    label = jnp.asarray(label)
    counted = True
    if label.dtype == jnp.int32:
        counted = label >= 0
        label = jax.nn.one_hot(label, x.shape[-1], dtype=x.dtype)
    smooth = (1 - e) * label + e * jnp.sum(label, -1, keepdims=True) / x.shape[-1]
    loss = -jnp.sum(smooth * log_p, -1) + z * lse**2
    return jnp.where(counted, weights * loss, 0), lse, -jnp.sum(jnp.exp(log_p) * log_p, -1)


def plain_mean(x, label, weights, *smoothing, **scales):
    total = jnp.sum(jnp.where(label >= 0, weights, 0))
    return jnp.sum(plain_losses(x, label, weights, *smoothing, **scales)[0]) / total


def cross_entropy(x, label, weights, **options):
    options |= {"label_smoothing": 0.1, "z_loss": 0.01, "weights": weights}
    return jk.cross_entropy(x, label, return_lse=True, return_entropy=True, **options)


def capped(x, p, temperature, **options):
    return jk.cross_entropy(x, p, temperature=temperature, logit_soft_cap=4.0, **options)


def plain_log_probs(x, ids, temperature, cap=None):
    loss, _, entropy = plain_losses(x, ids, temperature=temperature, cap=cap)
    return -loss, jnp.where(ids >= 0, entropy, 0)


def plain_candidates(x, ids, temperature):
    """The log-probabilities of several ids of each row, and the entropy."""
    _, lse, entropy = plain_losses(x, ids[..., 0], temperature=temperature)
    found = jnp.take_along_axis(x, ids, -1) / temperature[..., None] - lse[..., None]
    return jnp.where(ids >= 0, found, 0), jnp.where(jnp.any(ids >= 0, -1), entropy, 0)


def plain_divergence(x, target, weights=1.0, temperature=1.0, seen=True):
    scale = jnp.expand_dims(jnp.asarray(temperature, x.dtype), -1)
    log_q, log_p = (jax.nn.log_softmax(z / scale, where=seen) for z in (x, target))
    terms = jnp.where(seen, jnp.exp(log_p) * (log_p - log_q), 0)
    return weights * jnp.sum(terms, -1)


def plain_mean_divergence(x, target, weights, seen):
    """The mean over weighted rows, whose classes lie along the first axis."""
    x, target, seen = (jnp.moveaxis(z, 0, -1) for z in (x, target, seen))
    return jnp.sum(plain_divergence(x, target, weights, seen=seen)) / jnp.sum(weights)


def masked_loss(x, label, seen, temperature, **options):
    """A loss whose labels are the first class, which is visible."""
    options |= {"where": seen, "temperature": temperature, "label_smoothing": 0.1}
    return jk.cross_entropy(x, jnp.minimum(label, 0), reduction="mean", **options)


def plain_masked_loss(x, label, seen, temperature):
    log_p = jax.nn.log_softmax(x / jnp.expand_dims(temperature, -1), where=seen)
    smooth = jnp.sum(jnp.where(seen, log_p, 0), -1) / jnp.sum(seen, -1)
    loss = -0.9 * log_p[..., 0] - 0.1 * smooth
    return jnp.sum(jnp.where(label >= 0, loss, 0)) / jnp.sum(label >= 0)


def linear(x, w, label, bias, **options):
    options |= {"bias": bias, "label_smoothing": 0.1, "return_lse": True, "return_entropy": True}
    return jk.linear_cross_entropy(x, w, label, **options)


def hiding(function):
    """A loss of a linear layer whose last class is hidden; w is transposed."""

    def of(x, w, label, *others, **options):
        shown = np.arange(len(w)) < len(w) - 1
        return function(x, w, jnp.minimum(label, len(w) - 2), *others, where=shown, **options)

    return of


def without_last(function):
    """A loss of the logits of the other classes."""
    return lambda x, w, label, *others: function(
        jnp.matmul(x, w[:-1].T), jnp.minimum(label, len(w) - 2), *others
    )


def linear_options(x, w, label, weights, e, z, temperature, **options):
    options |= {"weights": weights, "label_smoothing": e, "z_loss": z, "reduction": "mean"}
    options |= {"temperature": temperature, "trans_w": True}
    return jk.linear_cross_entropy(x, w, label, **options)


def linear_log_probs(x, w, ids, temperature, **options):
    options |= {"logit_soft_cap": 4.0, "return_entropy": True, "trans_w": True}
    return jk.linear_token_log_probs(x, w, ids, temperature=temperature, **options)


def plain_rms_norm(x, scale=1.0, axis=-1, epsilon=1e-6):
    y = x * jax.lax.rsqrt(jnp.mean(x * x, axis, keepdims=True) + epsilon)
    return y * (scale if axis == -1 else scale[:, None])


def sgemm(a, b, c, factor, **options):
    return jk.sgemm(a, b, c, alpha=factor, beta=factor, **options)


NUMBERS = (((0,), (1,)), ((), ()))
LOSS = {"is_wide": True, "tolerance": 1e-5}
PRODUCT = {"dtypes": ("float32",), "tolerance": 1e-5}
ROWS = {"operands": ("normal brc",)}

FUNCTIONS = {
    "softmax": Function(jk.softmax, jax.nn.softmax, **ROWS),
    "softmax-axes": Function(*alike("softmax", jax.nn, axis=(0, 2)), **ROWS),
    "softmax-where": Function(
        lambda x, seen, **o: jk.softmax(x, where=seen, **o),
        lambda x, seen: jax.nn.softmax(x, where=seen),
        ("normal brc", "seen 1rc"),
    ),
    "log_softmax": Function(jk.log_softmax, jax.nn.log_softmax, **ROWS),
    "log_softmax-axis": Function(*alike("log_softmax", jax.nn, axis=1), **ROWS),
    "logsumexp": Function(*alike("logsumexp", jax.nn, axis=-1), **ROWS),
    "logsumexp-factors": Function(
        lambda x, b, **o: jk.logsumexp(x, -1, b, return_sign=True, **o)[0],
        lambda x, b: jax.nn.logsumexp(x, -1, b, return_sign=True)[0],
        ("normal brc", "positive 1r1"),
    ),
    "logsumexp-where": Function(
        lambda x, seen, **o: jk.logsumexp(x, (0, 2), where=seen, keepdims=True, **o),
        lambda x, seen: jax.nn.logsumexp(x, (0, 2), where=seen, keepdims=True),
        ("normal brc", "mask 1rc"),
    ),
    "rms_norm": Function(jk.rms_norm, plain_rms_norm, ("normal brc", "normal c")),
    "rms_norm-alone": Function(jk.rms_norm, plain_rms_norm, **ROWS),
    "rms_norm-axis": Function(
        functools.partial(jk.rms_norm, axis=1, epsilon=0.5, scale_offset=1.0),
        lambda x, scale: plain_rms_norm(x, 1 + scale, 1, 0.5),
        ("normal brc", "normal r"),
    ),
    "masked": Function(masked, plain_masked, ("normal bhqk", "mask b1qk", "normal 1h1k")),
    "masked-open": Function(
        functools.partial(jk.scaled_masked_softmax, scale=0.6),
        lambda x, mask, bias: plain_masked(x, mask, bias, is_causal=False),
        ("normal bhqk", "mask 11qk", "normal bh1k"),
    ),
    "masked-scale": Function(
        lambda x, scale, **o: jk.scaled_masked_softmax(x, scale=scale, **o),
        lambda x, scale: jax.nn.softmax(scale * x),
        ("normal qk", "positive "),
    ),
    "cross_entropy": Function(
        cross_entropy,
        functools.partial(plain_losses, e=0.1, z=0.01),
        ("normal brc", "label br", "positive br"),
        **LOSS,
    ),
    "cross_entropy-mean": Function(
        lambda x, label, e, z, **o: jk.cross_entropy(
            x, label, label_smoothing=e, z_loss=z, reduction="mean", **o
        ),
        lambda x, label, e, z: plain_mean(x, label, 1.0, e, z),
        ("normal brc", "label br", "share ", "share "),
        **LOSS,
    ),
    "cross_entropy-options": Function(
        lambda x, label, w, t, **o: jk.cross_entropy(
            x, label, axis=0, weights=w, temperature=t, logit_soft_cap=4.0, reduction="mean", **o
        ),
        lambda x, label, w, t: plain_mean(jnp.moveaxis(x, 0, -1), label, w, temperature=t, cap=4.0),
        ("normal cbr", "label br", "positive br", "positive 1r"),
        **LOSS,
    ),
    "cross_entropy-masked": Function(
        masked_loss,
        plain_masked_loss,
        ("normal brc", "label br", "seen 1rc", "positive b1"),
        **LOSS,
    ),
    "cross_entropy-scaled": Function(
        functools.partial(jk.cross_entropy, temperature=1.5, logit_soft_cap=4.0),
        lambda x, label: plain_losses(x, label, temperature=1.5, cap=4.0)[0],
        ("normal brc", "label br"),
        **LOSS,
    ),
    "cross_entropy-none": Function(
        jk.cross_entropy,
        lambda x, label: plain_losses(x, label)[0],
        ("normal brc", "label br"),
        **LOSS,
    ),
    "probabilities": Function(
        capped,
        lambda x, p, temperature: plain_losses(x, p, temperature=temperature, cap=4.0)[0],
        ("normal brc", "positive brc", "positive 1r"),
        **LOSS,
    ),
    "token_log_probs": Function(
        lambda x, ids, t, **o: jk.token_log_probs(x, ids, temperature=t, return_entropy=True, **o),
        plain_log_probs,
        ("normal brc", "label br", "positive 1r"),
        **LOSS,
    ),
    "token_log_probs-several": Function(
        lambda x, ids, t, **o: jk.token_log_probs(
            x, ids, temperature=jnp.exp(t), return_entropy=True, **o
        ),
        lambda x, ids, t: plain_candidates(x, ids, jnp.exp(t)),
        ("normal brc", "label brk", "positive 1r"),
        **LOSS,
    ),
    "softmax_kl_divergence": Function(
        lambda x, target, w, t, **o: jk.softmax_kl_divergence(
            x, target, weights=w, temperature=t, **o
        ),
        plain_divergence,
        ("normal brc", "normal brc", "positive br", "positive 1r"),
        **LOSS,
    ),
    "kl-mean": Function(
        lambda x, target, w, seen, **o: jk.softmax_kl_divergence(
            x, target, axis=0, where=seen, weights=w, reduction="mean", **o
        ),
        plain_mean_divergence,
        ("normal cbr", "normal cbr", "positive br", "seen cb1"),
        **LOSS,
    ),
    "optax": Function(
        jaxkernels.optax.softmax_cross_entropy_with_integer_labels,
        optax.softmax_cross_entropy_with_integer_labels,
        ("normal brc", "label br"),
        tolerance=1e-5,
    ),
    "linear_cross_entropy": Function(
        linear,
        lambda x, w, label, bias: plain_losses(jnp.matmul(x, w) + bias, label, e=0.1),
        ("normal brd", "normal dc", "label br", "normal c"),
        **LOSS,
        closed="dc",
    ),
    "linear_token_log_probs": Function(
        hiding(linear_log_probs),
        without_last(functools.partial(plain_log_probs, cap=4.0)),
        ("normal brd", "normal cd", "label br", "positive 1r"),
        **LOSS,
        closed="dc",
    ),
    "linear_cross_entropy-mean": Function(
        functools.partial(jk.linear_cross_entropy, label_smoothing=0.1, reduction="mean"),
        lambda x, w, label: plain_mean(jnp.matmul(x, w), label, 1.0, 0.1),
        ("normal brd", "normal dc", "label br"),
        **LOSS,
        closed="dc",
    ),
    "linear_cross_entropy-options": Function(
        hiding(linear_options),
        without_last(lambda x, label, w, e, z, t: plain_mean(x, label, w, e, z, temperature=t)),
        ("normal brd", "normal cd", "label br", "positive br", "share ", "share ", "positive 1r"),
        **LOSS,
        closed="dc",
    ),
    "matmul": Function(jk.matmul, jnp.matmul, ("normal md", "normal dn"), **PRODUCT),
    "matmul-batched": Function(jk.matmul, jnp.matmul, ("normal bmd", "normal 1dn"), **PRODUCT),
    "dot_general": Function(
        *alike("dot_general", jax.lax, dimension_numbers=NUMBERS),
        ("normal dn", "normal md"),
        **PRODUCT,
    ),
    "einsum": Function(
        *alike("einsum", jnp, "bmd,dn->bnm"), ("normal bmd", "normal dn"), **PRODUCT
    ),
    "tensordot": Function(*alike("tensordot", jnp, axes=1), ("normal bmd", "normal dn"), **PRODUCT),
    "sgemm": Function(
        sgemm,
        lambda a, b, c, factor: factor * (jnp.matmul(a, b) + c),
        ("normal md", "normal dn", "normal mn", "normal "),
        **PRODUCT,
    ),
    "sgemm-transposed": Function(
        functools.partial(jk.sgemm, alpha=-0.5, beta=2.0, trans_a=True, trans_b=True),
        lambda a, b, c: -0.5 * jnp.matmul(a.T, b.T) + 2 * c,
        ("normal dm", "normal nd", "normal mn"),
        **PRODUCT,
    ),
    "attention": Function(
        *alike("dot_product_attention", jax.nn, is_causal=True),
        ("normal bqhd", "normal bkhd", "normal bkhd", "normal 1hqk"),
        tolerance=1e-5,
        closed="hd",
    ),
}
# Other functions use the rules of these, so they need fewer transformations.
MAIN = (
    *("softmax", "log_softmax", "logsumexp", "rms_norm", "masked", "cross_entropy"),
    *("cross_entropy-mean", "linear_cross_entropy-mean", "matmul", "sgemm-transposed"),
)
NAMES = (
    *MAIN,
    "token_log_probs",
    "token_log_probs-several",
    "softmax_kl_divergence",
    "linear_cross_entropy",
    "sgemm",
    "attention",
)
