"""dot_product_attention: grouped heads, masks, biases, windows and lengths; on a GPU also flash kernels, cuDNN's or ours."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._attention import choice
from jaxkernels._rows.masked_kernels import band_of
from jaxkernels.verify.problem import Array, Arrays, Choice, Family, Problem, Rng, Traced, Truths
from jaxkernels.verify.row_layout import drawn_sizes
from jaxkernels.verify.truth import attention
from jaxkernels.verify.truth.compare import storage

KINDS = ("normal", "peaked", "faint", "equal")
_LENGTHS = ("query_seq_lengths", "key_value_seq_lengths")


class Attention(Family):
    """Options: sizes [B, T, S, N, K, H], mask and bias (shapes, or None), lengths (names), keyword arguments."""

    operations = ("dot_product_attention",)
    derivatives = ("value", "vjp", "remat")

    def choose(self, operation: str, dtype: str, derivative: str, most: int, rng: Rng) -> Choice:
        batch, k_heads, groups = (int(x) for x in rng.choice([1, 2, 3], 3))
        h = int(rng.choice([1, 3, 4, 8, 16, 33, 64])) if rng.random() < 0.98 else 0
        room = max(most // (batch * k_heads * groups), 1)
        s = int(min(rng.choice([1, 2, 5, 9, 16, 33, 64, 130]), room))
        t = int(min(rng.choice([1, 3, 7, 16, 31, s]), max(room // s, 1)))
        heads = k_heads * groups
        given: dict[str, Any] = {}
        if rng.random() < 0.4:
            given["is_causal"] = True
        if rng.random() < 0.25:
            left, right = (int(x) for x in rng.choice([0, 1, 3, s], 2))
            given["local_window_size"] = [[left, right], left][rng.integers(2)]
        if rng.random() < 0.3:
            given["scale"] = float(rng.choice([0.3, 1.0, 2.0]))
        if rng.random() < 0.3:
            given["empty_rows"] = "mean"
        options: dict[str, Any] = {"sizes": [batch, t, s, heads, k_heads, h], "arguments": given}
        for name, chance in (("mask", 0.4), ("bias", 0.3)):
            full = [batch, heads, t, s]
            options[name] = drawn_sizes(full, rng, 0.4) if rng.random() <= chance else None
        options["lengths"] = [name for name in _LENGTHS if rng.random() < 0.2]
        # At these sizes the default stores scores, so others must be named.
        how = _without_scores(dtype, options)
        if how is None or rng.random() < 0.3:
            return options, None
        given.pop("empty_rows", None)
        return options, how

    def member(self, problem: Problem, rng: Rng) -> tuple[Arrays, bool]:
        o, dtype = problem.options, storage(problem.dtype)
        batch, t, s, heads, k_heads, h = o["sizes"]
        kind = str(rng.choice(KINDS))
        size = {"peaked": 6.0, "faint": 1e-3}.get(kind, 1.5)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape)

        q, k = size * normal(batch, t, heads, h), size * normal(batch, s, k_heads, h)
        if kind == "equal":
            k[:] = k[:, :1]
        operands = {"q": q, "k": k, "v": 1.5 * normal(batch, s, k_heads, h)}
        if o["bias"] is not None:
            operands["bias"] = normal(*o["bias"])
        operands = {name: x.astype(dtype) for name, x in operands.items()}
        if o["mask"] is not None:
            operands["mask"] = rng.random(o["mask"]) < 0.6
        for name, most in zip(_LENGTHS, (t, s), strict=True):
            if name in o["lengths"]:
                operands[name] = rng.integers(0, most + 1, batch).astype(np.int32)
        return operands, True

    def result_shapes(self, problem: Problem) -> dict[str, Sequence[int]]:
        batch, t, _, heads, _, h = problem.options["sizes"]
        return {"y": [batch, t, heads, h]}

    def active(self, problem: Problem) -> tuple[str, ...]:
        return ("q", "k", "v")

    def call(self, problem: Problem, operands: Traced) -> jax.Array:
        given: Any = {n: x for n, x in operands.items() if n not in ("q", "k", "v", "t")}
        given |= problem.arguments | {"implementation": problem.how}
        return jk.dot_product_attention(operands["q"], operands["k"], operands["v"], **given)

    def truth(self, problem: Problem, operands: Arrays, results: Arrays, alike: Array) -> Truths:
        """Computes all members at once, as one larger batch."""
        whole = len(alike), problem.options["sizes"][0]

        def together(x: np.ndarray) -> np.ndarray:
            x = np.broadcast_to(x, (*whole, *x.shape[2:]))
            return x.reshape(whole[0] * whole[1], *x.shape[2:])

        merged = {name: together(x) for name, x in operands.items()}
        t = merged.pop("t", None)
        about: Any = {"dtype": problem.dtype, "is_split": problem.how == "ffi_flash"}
        truth = attention.Truth(**about, **merged, **problem.arguments)
        found = {"y": truth.result()}
        if t is not None:
            found |= {f"d{name}": x for name, x in truth.gradients(t).items()}
        return found


def _without_scores(dtype: str, options: dict[str, Any]) -> str | None:
    """The implementation that can compute a problem on this machine without storing scores; None if none can."""
    given = options["arguments"]
    window = given.get("local_window_size")
    window = tuple(window) if isinstance(window, list) else window
    asked = choice.Problem(
        tuple(options["sizes"]),
        dtype,
        bias=None if options["bias"] is None else dtype,
        has_mask=options["mask"] is not None,
        has_lengths=bool(options["lengths"]),
        band=band_of(given.get("is_causal", False), window, from_end=False),
        scale=given.get("scale", 1.0),
    )
    machine = choice.this_machine()
    if dtype == "float32":
        return None if choice.why_not_kernels(asked, machine and machine.limits) else "ffi_flash"
    return None if choice.why_not_cudnn(asked, machine) else "cudnn"
