"""docs/losses.md: its table of plans, and its replacements for the losses of other libraries, run as printed there."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import ROOT

import jaxkernels as jk
import jaxkernels.optax

TEXT = (ROOT / "docs" / "losses.md").read_text()
RNG = np.random.default_rng(0)
N, H, V = 12, 5, 7
X = RNG.standard_normal((N, H)).astype(np.float32)
W = RNG.standard_normal((H, V)).astype(np.float32)
BIAS = RNG.standard_normal(V).astype(np.float32)
OF_CLASSES = RNG.random(V).astype(np.float32)
LOGITS = X @ W
LABELS = RNG.integers(0, V, N)
E, Z, T = 0.2, 0.01, 3.0


def test_the_table_of_plans():
    rows = re.findall(
        r"^\| (\d+) x (\d+) x (\d+) \| (\w+) \| (\w+) \| (.*?) \|$", TEXT, flags=re.MULTILINE
    )
    assert len(rows) >= 6
    for *sizes, dtype, bound, shown in rows:
        sizes = list(map(int, sizes))
        plan = jk.plan_linear_cross_entropy(
            *sizes, dtype, max_bytes=None if bound == "None" else int(bound)
        )
        logits = sizes[0] * sizes[2] * jnp.dtype(dtype).itemsize
        found = (plan.logits_bytes, plan.sums_bytes, plan.total_bytes, logits)
        want = [plan.chunks, plan.chunk_rows, *(round(n / 1e6) for n in found)]
        assert list(map(int, shown.split(" | "))) == want, sizes


def loss(logits, labels=None, smoothing=0.0, z=0.0, cap=None, of_classes=None):
    """In float64: the losses of all rows, and their mean over those that have a label."""
    labels = LABELS if labels is None else np.asarray(labels)
    logits = np.asarray(logits, np.float64)
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    lse = np.log(np.sum(np.exp(logits), -1))
    counted = labels >= 0
    nll = lse - np.take_along_axis(logits, np.where(counted, labels, 0)[:, None], -1)[:, 0]
    nll = (1 - smoothing) * nll + smoothing * (lse - np.mean(logits, -1)) + z * lse**2
    weights = counted * (1 if of_classes is None else of_classes[np.maximum(labels, 0)])
    nll = np.where(counted, nll * weights, 0)
    return nll, np.sum(nll) / np.sum(weights)


NEGATIVE = np.where(np.arange(N) % 3 == 0, -100, LABELS)
ROLLED = np.append(LABELS[1:], -1)


def programs(section):
    """The second column of a section's table."""
    table = TEXT[TEXT.index(f"### {section}") :].partition("\n##")[0]
    return re.findall(r"^\| .*? \| `(jk.*?|jaxkernels.*?)` \|$", table, flags=re.MULTILINE)


def sections():
    one_hot, logits = jax.nn.one_hot(LABELS, V), jnp.asarray(LOGITS)
    plain = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)
    probabilities = jax.nn.softmax(jnp.sin(logits))
    of_rows = optax.softmax_cross_entropy
    biased = LOGITS + BIAS
    return {
        "optax": [
            plain,
            of_rows(logits, probabilities),
            of_rows(logits, optax.smooth_labels(one_hot, E)),
            plain.mean(),
            plain.mean(),
        ],
        "torch": [
            loss(LOGITS, NEGATIVE)[1],
            loss(LOGITS, NEGATIVE, smoothing=E)[1],
            loss(LOGITS, NEGATIVE, of_classes=OF_CLASSES)[1],
            loss(biased, NEGATIVE)[1],
            -loss(LOGITS)[0],
        ],
        "Liger": [
            loss(LOGITS, NEGATIVE)[1],
            loss(biased, NEGATIVE, smoothing=E, z=Z, cap=T)[1],
        ],
        "tokamax": [np.sum(loss(LOGITS)[0]), np.mean(loss(LOGITS)[0])],
        "levanter": [loss(LOGITS, ROLLED, z=Z, cap=T)[1]],
    }


@pytest.mark.parametrize("section", ["optax", "torch", "Liger", "tokamax", "levanter"])
def test_what_replaces_others(section):
    labels = NEGATIVE if section in ("torch", "Liger") else LABELS
    names = {
        **{"jk": jk, "jaxkernels": jaxkernels, "x": X, "w": W, "table": W.T, "bias": BIAS},
        **{
            "logits": jnp.asarray(LOGITS),
            "labels": jnp.asarray(labels),
            "ids": jnp.asarray(LABELS),
        },
        **{"probabilities": jax.nn.softmax(jnp.sin(LOGITS)), "of_classes": jnp.asarray(OF_CLASSES)},
        **{"e": E, "z": Z, "t": T, "jnp": jnp},
    }
    found, wanted = programs(section), sections()[section]
    assert len(found) == len(wanted)
    for program, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(eval(program, names), want, rtol=1e-5, err_msg=program)
