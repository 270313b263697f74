"""Well-known contractions in true float32: jaxkernels.einsum and jaxkernels.tensordot.

They have the signatures of ``jax.numpy.einsum`` and ``jax.numpy.tensordot``. The example compares
them with jnp's functions at JAX's default precision, and both with float64. On an NVIDIA GPU jnp
uses TF32, whose errors are a thousand times larger. On a CPU both are XLA's float32 product, so the
errors are equal except for the order of sums. XLA computes bfloat16 operands, bit for bit.

Run: python examples/einsum_float32.py [--size N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxkernels as jk

Contraction = Callable[..., Any]


class Case(NamedTuple):
    """A contraction by three libraries: ours, jnp's and, for float64, NumPy's."""

    name: str
    ours: Contraction
    theirs: Contraction
    exact: Contraction
    operands: tuple[jax.Array, ...]


class Finding(NamedTuple):
    """The errors of one contraction."""

    name: str
    our_error: float  # ||C - C64|| / ||C64||
    their_error: float
    products: int  # calls of our primitive in the program
    is_equal: bool  # equal bits to jnp's


def case_of(name: str, subscripts: str, *operands: jax.Array) -> Case:
    """A case of einsum."""
    ours, theirs, exact = (partial(f, subscripts) for f in (jk.einsum, jnp.einsum, np.einsum))
    return Case(name, ours, theirs, exact, operands)


def case_of_axes(name: str, axes: Any, *operands: jax.Array) -> Case:
    """A case of tensordot."""
    functions = (jk.tensordot, jnp.tensordot, np.tensordot)
    ours, theirs, exact = (partial(f, axes=axes) for f in functions)
    return Case(name, ours, theirs, exact, operands)


def make_cases(size: int) -> list[Case]:
    """Attention scores, a bilinear form, a tensor train, and sums over two axes."""
    keys = iter(jax.random.split(jax.random.key(0), 16))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape)

    query, key = normal(2, size, 4, 64), normal(2, size, 4, 64)
    x, form, y = normal(size, 24), normal(8, 24, 32), normal(size, 32)
    rank, side = 12, 8
    train = normal(side, rank), normal(rank, side, rank), normal(rank, side, rank)
    train += (normal(rank, side),)
    a, b = normal(size, 12, 16), normal(16, 12, size)
    return [
        case_of("attention scores", "bqhd,bkhd->bhqk", query, key),
        case_of("bilinear form", "ni,oij,nj->no", x, form, y),
        case_of("tensor train", "ia,ajb,bkc,cl->ijkl", *train),
        case_of_axes("sums over two axes", ((1, 2), (1, 0)), a, b),
        case_of(
            "scores in bfloat16",
            "bqhd,bkhd->bhqk",
            query.astype(jnp.bfloat16),
            key.astype(jnp.bfloat16),
        ),
    ]


def relative_error(got: jax.Array, exact: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - exact) / np.linalg.norm(exact))


def examine(case: Case) -> Finding:
    """Runs a case three times."""
    ours, theirs = (jax.jit(f)(*case.operands) for f in (case.ours, case.theirs))
    exact = case.exact(*(np.asarray(x, np.float64) for x in case.operands))
    program = str(jax.make_jaxpr(case.ours)(*case.operands))
    return Finding(
        case.name,
        relative_error(ours, exact),
        relative_error(theirs, exact),
        program.count("jaxkernels_sgemm["),
        bool(jnp.array_equal(ours, theirs)),
    )


def main(argv: Sequence[str] | None = None) -> list[Finding]:
    """Runs all cases, prints their errors and returns the findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--size", type=int, default=128, help="size of the dimensions that are not contracted"
    )
    options = parser.parse_args(argv)

    findings = [examine(case) for case in make_cases(options.size)]
    print(f"errors ||C - C64|| / ||C64|| on {jax.devices()[0].device_kind}")
    table = Table("contraction", "ours", "jnp, default", "our products", "equal bits")
    for name, ours, theirs, products, is_equal in findings:
        table.add_row(name, f"{ours:.1e}", f"{theirs:.1e}", str(products), str(is_equal))
    Console().print(table)
    if jax.default_backend() == "cpu":
        print("A CPU has no TF32: jnp's float32 products are true float32 here too.")
    print("XLA computes bfloat16 operands; its error is the rounding of the result to 8 bits.")
    return findings


if __name__ == "__main__":
    main()
