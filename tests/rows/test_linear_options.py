"""Every pair of options of losses of a linear layer, against the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from cases import pairwise
from linear_losses import Layer, bound_for
from oracle import assert_within

import jaxkernels as jk

ROWS, FEATURES, CLASSES = SHAPE = 31, 9, 33
RNG = np.random.default_rng(7)
X, W = RNG.standard_normal((ROWS, FEATURES)), RNG.standard_normal((FEATURES, CLASSES))
LABEL = np.where(np.arange(ROWS) % 5 == 0, -1, RNG.integers(0, CLASSES, ROWS)).astype(np.int32)
OF_ENTROPY = RNG.standard_normal(ROWS).astype(np.float32)
# The second cap saturates, and some labels are hidden.
LEVELS = {
    "dtype": ["float32", "bfloat16"],
    "max_bytes": [None, bound_for(3, *SHAPE, "float32", is_scaled=True)],
    "trans_w": [False, True],
    "bias": [None, RNG.standard_normal(CLASSES).astype(np.float32)],
    "temperature": [None, RNG.choice([1e-3, 0.7, 1e3], ROWS).astype(np.float32)],
    "logit_soft_cap": [None, 30.0, 0.01],
    "where": [None, np.arange(CLASSES) % 4 > 0],
    "return_entropy": [False, True],
}
OF_LOSSES = {
    "label_smoothing": [0.0, 0.1],
    "z_loss": [0.0, 0.01],
    "weights": [None, RNG.choice([0, 0.5, 2], ROWS).astype(np.float32)],
    "reduction": ["none", "mean"],
}


def results(name, moving, chosen):
    """The loss and any entropy, and the gradients of their sum, entropies times `OF_ENTROPY`."""
    options = {n: v for n, v in chosen.items() if n not in ("dtype", *moving) and v is not None}

    def function(moving):
        w = moving["w"].T if chosen["trans_w"] else moving["w"]
        # Logits of 16 bits would err by a thousand roundings behind the lowest temperature.
        given = {**moving, "w": w, **options, "logits_dtype": "float32"}
        return jax.tree.leaves(getattr(jk, name)(given.pop("x"), given.pop("w"), LABEL, **given))

    found, pull = jax.vjp(function, moving)
    return found, pull([jnp.ones_like(found[0]), *[OF_ENTROPY] * (len(found) - 1)])[0]


@np.errstate(all="ignore")
def check(name, found, gradients, chosen):
    reduction, weights = chosen.get("reduction", "none"), chosen.get("weights")
    weight = np.ones(ROWS) if weights is None else weights.astype(float)
    weight = weight / np.sum(weight[LABEL >= 0]) if reduction == "mean" else weight
    is_loss = name == "linear_cross_entropy"
    about = {n: chosen.get(m) for n, m in (("smoothing", "label_smoothing"), ("z_loss", "z_loss"))}
    x, w = (a.astype(oracle.storage(chosen["dtype"])) for a in (X, W))
    layer = Layer(
        *(x, w, chosen["bias"], LABEL, weight),
        **{n: v or 0.0 for n, v in about.items()},
        logits_dtype="float32",
        where=True if chosen["where"] is None else chosen["where"],
        soft_cap=chosen["logit_soft_cap"],
        temperature=chosen["temperature"],
    )
    of_entropy = np.zeros((ROWS, 1))
    if chosen["return_entropy"]:
        shown = (LABEL >= 0) | is_loss
        entropy = layer.losses.rows.measures().columns()[2].apply(lambda a: a[:, 0]).where(shown)
        assert_within(found[1], *entropy, "entropy")
        of_entropy = (OF_ENTROPY * shown)[:, None]
    sign = 1 if is_loss else -1
    names = ("x", "w", *(("bias",) if "bias" in gradients else ()), "temperature")
    given = [gradients[n] for n in names if n in gradients]
    layer.check(sign * found[0], given, reduction, of_loss=sign, of_entropy=of_entropy)


@pytest.mark.parametrize("name", ["linear_cross_entropy", "linear_token_log_probs"])
def test_pairs_of_options(name):
    cases = list(pairwise(LEVELS | (OF_LOSSES if name == "linear_cross_entropy" else {})))
    given = []
    for chosen in cases:
        storage = oracle.storage(chosen["dtype"])
        some = {n: chosen[n] for n in ("bias", "temperature") if chosen[n] is not None}
        given.append({"x": X.astype(storage), "w": W.astype(storage), **some})

    @jax.jit
    def program(given):
        return [results(name, some, chosen) for some, chosen in zip(given, cases, strict=True)]

    for got, chosen in zip(jax.device_get(program(given)), cases, strict=True):
        check(name, *got, chosen)
