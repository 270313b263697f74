"""A program that calls FFI targets with random mistakes, which no lowering rule would make.

Each call is served, or refused as an INVALID_ARGUMENT; none may end the process. Arguments: the number of calls of each
target, and names of targets.
"""

import dataclasses
import faulthandler
import sys
from typing import Any

import jax
import numpy as np

from jaxkernels._core import validate
from jaxkernels._rows import contract

ROWS, COLS = 5, 7
PRED, F32, U8 = np.dtype(bool), np.dtype(np.float32), np.dtype(np.uint8)
HUGE = (2**62, -(2**62), 2**63 - 1, -(2**63), 2**31, -(2**31), 2**30, -1)
TEXTS = ("", "x" * 5000, "auto", *validate.TIERS, *validate.ALGORITHMS, *contract.OPERATIONS)
NUMBERS = (np.nan, np.inf, -np.inf, -0.0, 1e300, 5e-324)


def pick(some: Any, rng: np.random.Generator) -> Any:
    return some[int(rng.integers(0, len(some)))]


@dataclasses.dataclass
class Call:
    """Operands and results as (shape, dtype), and attributes."""

    operands: list[tuple[tuple[int, ...], np.dtype]]
    results: list[tuple[tuple[int, ...], np.dtype]]
    attributes: dict[str, Any]


def operations_of(target: str) -> list[Any]:
    """The row operations that a target serves."""
    some = contract.OPERATIONS.items()
    found: list[Any] = [name for name, of in some if of.sums and len(of.results) == 1]
    if target == "jaxkernels_row_finish":  # other results follow from the statistics alone
        return [name for name in found if contract.OPERATIONS[name].stores_elements]
    return found if target == "jaxkernels_row_statistics" else [*contract.OPERATIONS]


def right_call(target: str, rng: np.random.Generator, name: str = "", of: str = "") -> Call:
    """A call that the target serves; `name` and `of` choose the row operation and its dtype."""
    dtype = np.dtype(of or rng.choice(["float32", "bfloat16", "float16", "float64"]))
    shape = (*(int(size) for size in rng.integers(1, 4, rng.integers(1, 4))), ROWS, COLS)
    x = (shape, dtype)
    if target == "jaxkernels_sgemm":
        a, b, out = (((*shape[:-2], *last), F32) for last in ((4, 8), (8, 6), (4, 6)))
        floats = {"alpha": np.float32(1), "beta": np.float32(0)}
        flags = {"trans_a": False, "trans_b": False}
        sizes = {"for_batch": False, "split_k": 1, "pad_a": 0, "pad_b": 0}
        return Call([a, b], [out, ((0,), F32)], {**flags, **floats, "algorithm": "naive", **sizes})
    if target.startswith("jaxkernels_attention"):
        out = ((1, 3, 2, 4), F32)
        flags = dict.fromkeys(("has_bias", "has_mask", "has_q_lengths", "has_k_lengths"), False)
        scalars = {"scale": np.float32(0.5), "left": -(2**30), "right": 0}
        row_sums, attributes = ((1, 2, 3, 2), F32), {**scalars, **flags}
        tiles = 6 * 32768 + 4 * 1024  # a tile for each head of each operand
        if target == "jaxkernels_attention":
            return Call([out] * 3, [out, row_sums, ((tiles,), U8)], attributes)
        operands = [out, out, out, out, row_sums, out]
        return Call(operands, [out, out, out, ((0,), F32), ((2 * tiles,), U8)], attributes)
    operation: Any = name or str(rng.choice(operations_of(target)))
    traits = contract.OPERATIONS[operation]
    has_mask = bool(rng.integers(0, 2)) and any(x.role == "mask" for x in traits.operands)
    wide = np.dtype("float64" if dtype == np.float64 else "float32")

    def array(spec: contract.Operand) -> tuple:
        if spec.role == "mask":
            return shape, PRED
        if spec.role == "label":
            return (*shape[:-1], 1), np.dtype("int32")
        if spec.role == "row":
            return (*shape[:-1], spec.count), dtype if rng.integers(0, 2) else wide
        if spec.role == "column":
            return shape[-1:], dtype if rng.integers(0, 2) else wide
        return x

    specs = traits.operands_of_call(has_mask=has_mask)
    is_statistics = target == "jaxkernels_row_statistics"
    operands = [array(spec) for spec in specs if not (is_statistics and spec.is_of_row)]
    results = [*map(array, traits.results)]
    scale = np.float64(0.5 if traits.hides else 1.0)
    attributes = {"operation": operation, "scale": scale, "has_mask": has_mask}
    attributes["all_sums"] = bool(rng.integers(0, 2))
    statistics = ((*shape[:-1], 1 + traits.sums_of(dtype)), wide)
    if is_statistics:
        return Call(operands, [statistics], attributes)
    if target == "jaxkernels_row_finish":
        return Call([statistics, *operands], results, attributes)
    right = int(rng.integers(-3, 3)) if traits.hides else 2**30
    band = {"left": -(2**30), "right": right, "from_end": bool(rng.integers(0, 2))}
    return Call(operands, results, {**attributes, **band, "tier": "auto"})


def other_shape(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """Another rank, another size, no elements, or sizes that many broadcasts give."""
    at = int(rng.integers(0, max(1, len(shape))))
    resized = lambda size: (*shape[:at], size, *shape[at + 1 :])  # noqa: E731
    some = (
        *((), shape[1:], (2, *shape), (*shape, 2), shape[::-1], (3, 1) * 9 + shape),
        *(resized(1), resized(0), resized(13)),
    )
    return pick(some, rng)


def other_attribute(value: Any, rng: np.random.Generator) -> Any:
    """Another value of the same type, or one of another type."""
    wrong = (np.float32(1), np.int32(1), np.ones(3), True, "text", 1, 0.5, {"inner": 1})
    if isinstance(value, bool):
        some = (not value,)
    elif isinstance(value, str):
        some = TEXTS
    elif isinstance(value, int):
        some = HUGE
    elif isinstance(value, (float, np.floating)):
        some = tuple(type(value)(number) for number in NUMBERS)
    else:
        some = wrong
    some = some if rng.random() < 0.6 else wrong
    return pick(some, rng)


def change_attributes(attributes: dict, rng: np.random.Generator) -> None:
    kind = rng.random()
    if kind < 0.1 or not attributes:
        attributes["unheard_of"] = 1
        return
    name = pick(list(attributes), rng)
    if kind < 0.2:
        del attributes[name]
    else:
        attributes[name] = other_attribute(attributes[name], rng)


def make_mistake(call: Call, rng: np.random.Generator) -> None:
    kind = int(rng.integers(0, 6))
    if kind > 3:
        change_attributes(call.attributes, rng)
        return
    buffers = (call.operands, call.results)[kind % 2]
    at = int(rng.integers(0, max(1, len(buffers))))
    shape, dtype = buffers[at] if buffers else ((3,), F32)
    others = ("bool", "int8", "int32", "uint64", "complex64", "float16", "float32", "float64")
    changed = [(other_shape(shape, rng), dtype)], [(shape, np.dtype(pick(others, rng)))]
    another_number = [], [(shape, dtype)] * 2
    buffers[at : at + 1] = pick(another_number if kind > 1 else changed, rng)


def refusal(target: str, call: Call) -> str:
    """The text of the INVALID_ARGUMENT, empty if the target serves the call; any other error is raised."""
    results = [jax.ShapeDtypeStruct(*result) for result in call.results]
    operands = [np.ones(shape, dtype) for shape, dtype in call.operands]
    program = jax.jit(lambda *xs: jax.ffi.ffi_call(target, results)(*xs, **call.attributes))
    try:
        returned = jax.block_until_ready(program(*operands))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        return str(error)
    assert [(y.shape, y.dtype) for y in returned] == call.results
    return ""


def main(calls, *targets):
    faulthandler.enable()
    jax.config.update("jax_enable_x64", True)
    for target in targets:
        rng = np.random.default_rng(sum(map(ord, target)))
        served = 0
        for turn in range(int(calls)):
            call = right_call(target, rng)
            mistakes = 0 if turn % 20 == 0 else int(rng.integers(1, 3))
            for _ in range(mistakes):
                make_mistake(call, rng)
            # This is the last line before a crash, whose stack does not show the call.
            print(target, call, file=sys.stderr, flush=True)
            said = refusal(target, call)
            assert mistakes or not said, f"{call}: {said}"
            served += not said
        print(f"{target}: {served} of {calls} calls served")


if __name__ == "__main__":
    main(*sys.argv[1:])
