"""The loss of a language model whose vocabulary is sharded over eight devices, and its communication.

Each device holds an eighth of the classes: of the logits, or of the weight matrix. Under ``jax.jit``,
``jaxkernels.cross_entropy`` and ``jaxkernels.linear_cross_entropy`` exchange one maximum and three sums
per row, never the logits. The example prints the collectives of each compiled program, for loss and
gradient together, and their bytes. It does the same for optax's loss, which XLA splits (with one sum
less, because optax does not count the largest logits), and for the loss after an all-gather of the
logits. It compares values and gradients with optax's on one device.

The devices are simulated on the CPU. A program for GPUs is the same, over ``jax.devices()``.

Run: python examples/vocabulary_parallel.py [--rows N] [--vocabulary N]
(exit code 1 if anything differs)
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from comparison import relative_difference
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

import jaxkernels as jk

DEVICES = 8
FEATURES = 64
# Relative to the largest entry. A row's sum has thousands of terms, added in another order.
ALLOWED = 1e-5
ITEM_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8}

Loss = Callable[..., jax.Array]


class Program(NamedTuple):
    """A loss of differentiable operands and labels, and how the operands are split."""

    name: str
    loss: Loss
    exact: Loss  # the same by optax, for one device
    operands: tuple[jax.Array, ...]
    specs: tuple[P, ...]


class Finding(NamedTuple):
    """The communication and errors of one program."""

    name: str
    sent: dict[str, int]  # bytes of the results of each kind of collective
    value_difference: float  # relative, to optax's loss on one device
    gradient_difference: float  # relative to the largest entry
    specs: tuple[Any, ...]  # how the gradients are split

    @property
    def is_equal(self) -> bool:
        """Whether loss and gradients equal those of one device within rounding."""
        return max(self.value_difference, self.gradient_difference) <= ALLOWED


def optax_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def optax_linear_loss(x: jax.Array, w: jax.Array, labels: jax.Array) -> jax.Array:
    return optax_loss(jnp.matmul(x, w, precision="highest"), labels)


def gathered_loss(mesh: Mesh, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The loss after every device has gathered all logits."""
    whole = jax.lax.with_sharding_constraint(logits, NamedSharding(mesh, P()))
    return jk.cross_entropy(whole, labels, reduction="mean")


def make_programs(rows: int, vocabulary: int, mesh: Mesh) -> tuple[list[Program], jax.Array]:
    """The losses of logits and of a linear layer, and the labels of all."""
    keys = jax.random.split(jax.random.key(0), 4)
    logits = 3 * jax.random.normal(keys[0], (rows, vocabulary))
    x = jax.random.normal(keys[1], (rows, FEATURES))
    w = jax.random.normal(keys[2], (FEATURES, vocabulary)) / math.sqrt(FEATURES)
    labels = jax.random.randint(keys[3], (rows,), 0, vocabulary)
    ours = partial(jk.cross_entropy, reduction="mean")
    linear = partial(jk.linear_cross_entropy, reduction="mean")
    of_logits = (optax_loss, (logits,), (P(None, "vocabulary"),))
    of_layer = (optax_linear_loss, (x, w), (P(), P(None, "vocabulary")))
    programs = [
        Program("cross_entropy", ours, *of_logits),
        Program("optax", optax_loss, *of_logits),
        Program("cross_entropy, gathered", partial(gathered_loss, mesh), *of_logits),
        Program("linear_cross_entropy", linear, *of_layer),
        Program("optax of x w", optax_linear_loss, *of_layer),
    ]
    return programs, labels


def collectives(hlo: str) -> dict[str, int]:
    """The bytes of the results of all collectives of a compiled program, by kind."""
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    sent: dict[str, int] = {}
    for results, kind in re.findall(rf" = (.*?) ({kinds})\(", hlo):
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", results):
            size = math.prod(int(n) for n in shape.split(",") if n)
            sent[kind] = sent.get(kind, 0) + size * ITEM_BYTES[dtype]
    return sent


def examine(program: Program, labels: jax.Array, mesh: Mesh) -> Finding:
    """Compiles a loss with its gradients for the mesh, and compares it with optax's on one device."""
    by = tuple(range(len(program.operands)))
    placed = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(program.operands, program.specs, strict=True)
    ]
    everywhere = jax.device_put(labels, NamedSharding(mesh, P()))
    function = jax.jit(jax.value_and_grad(program.loss, by))
    compiled = function.lower(*placed, everywhere).compile()
    value, gradients = compiled(*placed, everywhere)
    want, exact = jax.jit(jax.value_and_grad(program.exact, by))(*program.operands, labels)
    host = partial(jax.tree.map, jax.device_get)
    return Finding(
        program.name,
        collectives(compiled.as_text() or ""),
        abs(float(value) / float(want) - 1),
        max(map(relative_difference, host(gradients), host(exact))),
        tuple(gradient.sharding.spec for gradient in gradients),
    )


def main(argv: Sequence[str] | None = None) -> list[Finding]:
    """Runs all programs, prints their communication and returns the findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=8192, help=f"a multiple of {DEVICES}")
    options = parser.parse_args(argv)

    devices = jax.devices("cpu")[:DEVICES]
    mesh = jax.make_mesh((DEVICES,), ("vocabulary",), axis_types=(AxisType.Auto,), devices=devices)
    with jax.default_device(devices[0]):
        programs, labels = make_programs(options.rows, options.vocabulary, mesh)
        findings = [examine(program, labels, mesh) for program in programs]

    logits = 4 * options.rows * options.vocabulary
    print(f"{options.rows} rows, {options.vocabulary} classes on {DEVICES} simulated devices")
    print(f"all logits have {logits} bytes, the gradient of x {4 * options.rows * FEATURES}")
    table = Table("loss and gradient", "bytes sent", "loss", "gradient", "")
    table.title = "relative differences to optax on one device"
    for found in findings:
        table.add_row(
            found.name,
            "\n".join(f"{kind} {size}" for kind, size in found.sent.items()) or "none",
            f"{found.value_difference:.1e}",
            f"{found.gradient_difference:.1e}",
            "equal" if found.is_equal else "DIFFER",
        )
    Console().print(table)
    return findings


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)  # before anything runs
    sys.exit(0 if all(finding.is_equal for finding in main()) else 1)
