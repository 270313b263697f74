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


def rows(x, mask, bias, labels, **options):
    """Whole rows: every kind of operand and attribute that a row operation has."""
    of_loss = {"reduction": "mean", "label_smoothing": 0.1, **options}
    loss = functools.partial(jk.cross_entropy, labels=labels, **of_loss)
    of_scores = {"scale": 0.5, "causal": True, **options}
    attention = functools.partial(jk.scaled_masked_softmax, mask=mask, bias=bias, **of_scores)
    softmax = functools.partial(jk.softmax, **options)
    return {
        "softmax": softmax(x),
        "log_softmax": jk.log_softmax(x, **options),
        "logsumexp": jk.logsumexp(x, axis=-1, **options),
        "softmax_grad": jax.vjp(softmax, x)[1](bias)[0],
        "attention": attention(x),
        "attention_grad": jax.vjp(attention, x)[1](bias)[0],
        "loss": loss(x),
        "loss_grad": jax.grad(loss)(x),
    }


def product(a, b, c):
    """A batch of products, added to what is there."""
    return jk.sgemm(a, b, c, alpha=0.5, beta=-1.0)


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


def truth(name, *operands):
    """The results of a program in float64, by plain JAX."""
    with jax.enable_x64(True):
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in operands]
        if name == "rows":
            return rows(*wide, implementation="xla")
        if name == "row_parts":
            return jax.nn.log_softmax(*wide)
        a, b, c = wide
        return 0.5 * (a @ b) - c


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
