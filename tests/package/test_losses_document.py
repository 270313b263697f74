"""docs/losses.md: its table of plans, and its replacements for the losses of other libraries, run as printed there."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import ROOT
from public_functions import plain_losses, plain_mean

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
    biased, of_labels = LOGITS + BIAS, plain_losses(LOGITS, LABELS)[0]
    return {
        "optax": [
            plain,
            of_rows(logits, probabilities),
            optax.losses.kl_divergence(jax.nn.log_softmax(logits), probabilities),
            of_rows(logits, optax.smooth_labels(one_hot, E)),
            plain.mean(),
            plain.mean(),
        ],
        "torch": [
            plain_mean(LOGITS, NEGATIVE, 1.0),
            plain_mean(LOGITS, NEGATIVE, 1.0, E),
            plain_mean(LOGITS, NEGATIVE, OF_CLASSES[NEGATIVE.clip(0)]),
            plain_mean(biased, NEGATIVE, 1.0),
            -of_labels,
        ],
        "Liger": [
            plain_mean(LOGITS, NEGATIVE, 1.0),
            plain_mean(biased, NEGATIVE, 1.0, E, Z, cap=T),
        ],
        "tokamax": [np.sum(of_labels), np.mean(of_labels)],
        "levanter": [plain_mean(LOGITS, ROLLED, 1.0, 0.0, Z, cap=T)],
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
        "teacher": jnp.sin(LOGITS),
        **{"e": E, "z": Z, "t": T, "jnp": jnp},
    }
    found, wanted = programs(section), sections()[section]
    assert len(found) == len(wanted)
    for program, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(eval(program, names), want, rtol=1e-5, err_msg=program)
