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
from jaxkernels.verify.truth.attention import Truth

FOLDER = Path(__file__).resolve().parent.parent / "package" / "exported"


def results(module, attention, loss, x, bias):
    """Every kind of operand and attribute that a row operation has."""
    return {
        "softmax": module.softmax(x),
        "log_softmax": module.log_softmax(x),
        "logsumexp": module.logsumexp(x, axis=-1),
        "softmax_grad": jax.vjp(module.softmax, x)[1](bias)[0],
        "attention": attention(x),
        "attention_grad": jax.vjp(attention, x)[1](bias)[0],
        "loss": loss(x),
        "loss_grad": jax.grad(loss)(x),
    }


def rows(x, mask, bias, labels):
    loss = lambda x: jk.cross_entropy(x, labels, reduction="mean", label_smoothing=0.1)  # noqa: E731
    attention = lambda x: jk.scaled_masked_softmax(x, mask, bias, scale=0.5, causal=True)  # noqa: E731
    return results(jk, attention, loss, x, bias)


def plain_rows(x, mask, bias, labels):
    """The same by jax.nn."""
    q, k = x.shape[-2:]
    seen = mask & np.tri(q, k, k - q, dtype=bool)  # the last query sees every key
    target = 0.9 * jax.nn.one_hot(labels, k) + 0.1 / k
    loss = lambda x: -(target * jax.nn.log_softmax(x)).sum(-1).mean()  # noqa: E731
    return results(jax.nn, lambda x: jax.nn.softmax(0.5 * x + bias, where=seen), loss, x, bias)


def product(a, b, c):
    """A batch of products, from which c is subtracted."""
    return jk.sgemm(a, b, c, alpha=0.5, beta=-1.0)


def attention(q, k, v, bias, dy):
    """Its value and gradients by our flash kernels, which a CPU does not have."""
    of = functools.partial(jk.dot_product_attention, is_causal=True, implementation="ffi_flash")
    y, pull = jax.vjp(of, q, k, v, bias)
    return y, pull(dy)


def operands():
    """The operands of each program, by its name."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    mask = rng.random((2, 1, 40)) < 0.7
    mask[..., 0] = True  # each row sees a key
    return {
        "rows": (3 * normal(2, 5, 40), mask, normal(2, 5, 40), rng.integers(0, 40, (2, 5))),
        "row_parts": (3 * normal(5, 40),),
        "product": (normal(3, 5, 24), normal(3, 24, 6), normal(3, 5, 6)),
        "attention": (
            *(normal(2, 40, 3, 64) for _ in "qkv"),
            normal(3, 40, 40),
            normal(2, 40, 3, 64),
        ),
    }


PROGRAMS = {
    "rows": rows,
    "row_parts": functools.partial(in_parts, "log_softmax_fwd"),
    "product": product,
    "attention": attention,
}


def truth(name, *operands):
    """The results of a program in float64, by plain JAX or NumPy."""
    if name == "attention":
        *given, bias, dy = operands
        truth = Truth(*given, bias=bias, is_causal=True)
        pulled = {key: x.value for key, x in truth.gradients(dy).items()}
        return truth.result().value, (*(pulled[x] for x in "qkv"), pulled["scores"].sum(0))
    with jax.enable_x64(True):
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in operands]
        if name == "rows":
            return plain_rows(*wide)
        if name == "row_parts":
            return jax.nn.log_softmax(*wide)
        a, b, c = wide
        return 0.5 * (a @ b) - c


def main():
    if not registry.has_cuda_module():
        raise SystemExit("jaxkernels was built without CUDA")
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no paths of this machine
    for name, program in PROGRAMS.items():
        platforms = ("cuda",) if name == "attention" else ("cpu", "cuda")
        exported = jax.export.export(
            jax.jit(program), platforms=platforms, disabled_checks=jk.export_checks()
        )(*operands()[name])
        (FOLDER / f"{jk.__version__}_{name}.bin").write_bytes(exported.serialize())


if __name__ == "__main__":
    main()
