"""Programs that an earlier version exported, which are kept as files: what they compute, and how the files are made.

    python tests/support/exported_programs.py

writes tests/package/exported/<version>_<name>.bin for the installed version, and keeps the files of earlier versions.
It needs the CUDA module, so that a file holds the calls of both platforms, but no GPU. It also needs the oldest
supported JAX, which cannot read the files of newer ones.
"""

import functools
from pathlib import Path

import jax
import numpy as np
from row_parts_cases import in_parts

import jaxkernels as jk
from jaxkernels._core import registry

FOLDER = Path(__file__).resolve().parent.parent / "package" / "exported"
PLATFORMS = ("cpu", "cuda")


def rows(x, mask, bias, labels):
    """Whole rows: every kind of operand and attribute that a row operation has."""
    loss = lambda x: jk.cross_entropy(x, labels, reduction="mean", label_smoothing=0.1)  # noqa: E731
    attention = lambda x: jk.scaled_masked_softmax(x, mask, bias, scale=0.5, causal=True)  # noqa: E731
    return {
        "softmax": jk.softmax(x),
        "log_softmax": jk.log_softmax(x),
        "logsumexp": jk.logsumexp(x, axis=-1),
        "softmax_grad": jax.vjp(jk.softmax, x)[1](bias)[0],
        "attention": attention(x),
        "attention_grad": jax.vjp(attention, x)[1](bias)[0],
        "loss": loss(x),
        "loss_grad": jax.grad(loss)(x),
    }


def product(a, b, c):
    """A batch of products, added to what is there."""
    return jk.sgemm(a, b, c, alpha=0.5, beta=-1.0)


def _softmax(x):
    terms = np.exp(x - x.max(axis=-1, keepdims=True))
    return terms / terms.sum(axis=-1, keepdims=True)


def _rows_in_float64(x, mask, bias, labels):
    """The results that `rows` must give, computed by NumPy."""
    x, bias = x.astype(np.float64), bias.astype(np.float64)

    def gradient(y):
        return y * (bias - (y * bias).sum(axis=-1, keepdims=True))

    q, k = x.shape[-2:]
    seen = mask & np.tri(q, k, k - q, dtype=bool)  # the last query sees every key
    y = _softmax(x)
    scores = _softmax(np.where(seen, 0.5 * x + bias, -np.inf))
    target = 0.9 * np.eye(x.shape[-1])[labels] + 0.1 / x.shape[-1]
    return {
        "softmax": y,
        "log_softmax": np.log(y),
        "logsumexp": (x - np.log(y))[..., 0],
        "softmax_grad": gradient(y),
        "attention": scores,
        "attention_grad": 0.5 * gradient(scores),
        "loss": -(target * np.log(y)).sum(axis=-1).mean(),
        "loss_grad": (y - target) / labels.size,
    }


def operands():
    """The operands of each program, by its name."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    mask = rng.random((2, 1, 40)) < 0.7
    mask[..., 0] = True  # no row sees nothing
    return {
        "rows": (3 * normal(2, 5, 40), mask, normal(2, 5, 40), rng.integers(0, 40, (2, 5))),
        "row_parts": (3 * normal(5, 40),),
        "product": (normal(3, 5, 24), normal(3, 24, 6), normal(3, 5, 6)),
    }


PROGRAMS = {
    "rows": rows,
    "row_parts": functools.partial(in_parts, "log_softmax_fwd"),
    "product": product,
}
TRUTHS = {
    "rows": _rows_in_float64,
    "row_parts": lambda x: np.log(_softmax(x.astype(np.float64))),
    "product": lambda a, b, c: 0.5 * (a.astype(np.float64) @ b) - c,
}


def main():
    if not registry.has_cuda_module():
        raise SystemExit("jaxkernels was built without CUDA")
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths of this machine
    for name, program in PROGRAMS.items():
        exported = jax.export.export(
            jax.jit(program), platforms=PLATFORMS, disabled_checks=jk.export_checks()
        )(*operands()[name])
        (FOLDER / f"{jk.__version__}_{name}.bin").write_bytes(exported.serialize())


if __name__ == "__main__":
    main()
