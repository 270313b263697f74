"""Exports a model with our kernels to a file, and serves it in a process that has no model.

``jax.export`` writes one program for CPUs and NVIDIA GPUs; ``jaxkernels.export_checks()`` allows our
kernels in it. The batch size is symbolic, so one file serves all sizes. The server is a new process. It
needs the file and ``import jaxkernels``, which registers the kernels with XLA. It compiles the program
for a few batch sizes before the first request, pads each request to the next of these sizes, and
prints the times. The example compares the answers with those of the model itself.

On a GPU a product with a symbolic size runs the kernel ``pipelined``.

Run: python examples/serve_exported.py [--folder FOLDER]    (exit code 1 if an answer differs)
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from comparison import relative_difference

import jaxkernels as jk

LENGTH, HEADS, FEATURES, CLASSES = 16, 4, 64, 10
PROGRAM, REQUESTS, ANSWERS = "model.jax", "requests.npz", "answers.npz"
PREPARED = (1, 4, 32)  # batch sizes that the server compiles for
REQUESTED = (1, 3, 4, 20, 32)
# Relative to the largest probability: some hundred terms, each rounded by 6e-8.
ALLOWED = 1e-5

# The weights of queries, keys and values (3, FEATURES, FEATURES), and of logits (FEATURES, CLASSES).
Weights = tuple[jax.Array, jax.Array]


class Result(NamedTuple):
    """The findings of the parent process."""

    platforms: tuple[str, ...]
    file_bytes: int
    kernels: int  # calls of our row kernels in the exported program
    differences: dict[int, float]  # relative error of the answers to requests of each size

    @property
    def is_equal(self) -> bool:
        """Whether the server answers as the model does."""
        return max(self.differences.values()) <= ALLOWED


def make_weights() -> Weights:
    keys = jax.random.split(jax.random.key(0))
    attention = jax.random.normal(keys[0], (3, FEATURES, FEATURES)) * FEATURES**-0.5
    return attention, jax.random.normal(keys[1], (FEATURES, CLASSES))


def model(weights: Weights, x: jax.Array) -> jax.Array:
    """Maps sequences (batch, LENGTH, FEATURES) to probabilities (batch, CLASSES)."""
    shape = (*x.shape[:2], HEADS, FEATURES // HEADS)
    attention, logits = weights
    query, key, value = (jk.matmul(x, w).reshape(shape) for w in attention)
    attended = jk.dot_product_attention(query, key, value, is_causal=True)
    features = jnp.mean(attended.reshape(x.shape), axis=1)
    return jk.softmax(jk.matmul(features, logits))


def export(weights: Weights, file: Path) -> jax.export.Exported:
    """Writes the program, with its weights, for any batch size."""
    (batch,) = jax.export.symbolic_shape("batch")
    x = jax.ShapeDtypeStruct((batch, LENGTH, FEATURES), jnp.float32)
    program = jax.jit(lambda x: model(weights, x))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exported = jax.export.export(
            program, platforms=["cpu", "cuda"], disabled_checks=jk.export_checks()
        )(x)
    for warning in said:  # a build without CUDA exports plain JAX for GPUs, and says so
        print(f"note: {warning.message}")
    file.write_bytes(exported.serialize())
    return exported


def serve(folder: Path) -> None:
    """Loads the program, compiles it for the sizes of PREPARED, and answers all requests."""
    start = time.perf_counter()
    exported = jax.export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    print(f"server: loaded in {1e3 * (time.perf_counter() - start):.0f} ms")
    run = jax.jit(exported.call)
    compiled = {}
    for size in PREPARED:
        start = time.perf_counter()
        x = jax.ShapeDtypeStruct((size, *exported.in_avals[0].shape[1:]), jnp.float32)
        compiled[size] = run.lower(x).compile()
        seconds = time.perf_counter() - start
        print(f"server: compiled for batches of {size} in {1e3 * seconds:.0f} ms")

    answers = {}
    with np.load(folder / REQUESTS) as requests:
        for name, request in requests.items():
            size = next(size for size in PREPARED if size >= len(request))
            start = time.perf_counter()
            padded = np.zeros((size, *request.shape[1:]), request.dtype)
            padded[: len(request)] = request
            answers[name] = np.asarray(compiled[size](padded))[: len(request)]
            milliseconds = 1e3 * (time.perf_counter() - start)
            print(f"server: {len(request)} as a batch of {size} in {milliseconds:.2f} ms")
    np.savez(folder / ANSWERS, **answers)


def export_and_serve(folder: Path) -> Result:
    """Exports the model, starts the server, and compares its answers with the model's."""
    weights = make_weights()
    exported = export(weights, folder / PROGRAM)
    file_bytes = (folder / PROGRAM).stat().st_size
    kernels = exported.mlir_module().count("@jaxkernels_rows")
    print(f"exported for {', '.join(exported.platforms)}: {exported.in_avals[0]}")
    print(f"{file_bytes} bytes, {kernels} calls of our row kernels", flush=True)

    draw = np.random.default_rng(0).standard_normal
    shapes = {str(size): (size, LENGTH, FEATURES) for size in REQUESTED}
    requests: dict[str, Any] = {name: draw(shape, np.float32) for name, shape in shapes.items()}
    np.savez(folder / REQUESTS, **requests)
    # This process may hold most of a GPU's memory already.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, __file__, "--folder", str(folder), "--serve"]
    subprocess.run(command, env=environment, check=True)

    differences = {}
    with np.load(folder / ANSWERS) as answers:
        for name, request in requests.items():
            want = model(weights, jnp.asarray(request))
            differences[int(name)] = relative_difference(answers[name], want)
    result = Result(tuple(exported.platforms), file_bytes, kernels, differences)
    worst = max(differences.values())
    print(f"largest relative difference to the model itself: {worst:.1e}  ", end="")
    print("equal" if result.is_equal else "DIFFER")
    return result


def main(argv: Sequence[str] | None = None) -> Result | None:
    """Exports and serves, or with --serve serves an earlier export."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="folder of the files; default: a temporary one")
    parser.add_argument(
        "--serve", action="store_true", help="be the server, for the files in the folder"
    )
    options = parser.parse_args(argv)
    if options.serve:
        if options.folder is None:
            parser.error("--serve needs --folder")
        return serve(options.folder)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return export_and_serve(options.folder)
    with tempfile.TemporaryDirectory() as folder:
        return export_and_serve(Path(folder))


if __name__ == "__main__":
    outcome = main()
    sys.exit(0 if outcome is None or outcome.is_equal else 1)
