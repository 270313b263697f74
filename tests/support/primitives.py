"""A call of every primitive, for tests of the rules that each has."""

import functools

import numpy as np
import pytest

from jaxkernels._attention import flash
from jaxkernels._attention.problem import MOVING, Call
from jaxkernels._rows import cross_entropy_kernels, logsumexp, masked_kernels, rms_norm, softmax
from jaxkernels._rows.contract import RowKernel
from jaxkernels._rows.masked_kernels import Band
from jaxkernels._sgemm import primitive as sgemm_primitive
from jaxkernels._sgemm.options import Options

RNG = np.random.default_rng(7)
BAND = {"left": -(1 << 30), "right": 0, "from_end": True}
SCORES = {"scale": 0.5, **BAND}
MASK = np.tril(np.ones((1, 4, 5), bool))
BIAS = RNG.standard_normal((1, 4, 5)).astype(np.float32)
PARAMETERS = {
    "jaxkernels_masked_softmax_fwd": {**SCORES, "has_mask": True, "has_bias": True},
    "jaxkernels_masked_softmax_grad": SCORES,
    **{f"jaxkernels_rms_norm_{name}": {"epsilon": 0.1} for name in ("fwd", "grad", "jvp")},
    **{f"jaxkernels_cross_entropy_{name}": {"all_sums": True} for name in ("fwd", "fwd_grad")},
}


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def _operand(spec):
    if spec.role == "label":
        return np.array([[[1], [3], [-1], [4]]] * 2, np.int32)
    if spec.role == "row":
        return 1 + np.abs(normal(2, 4, spec.count))
    return {"mask": MASK, "broadcast": BIAS, "column": BIAS[0, 0]}.get(spec.role, normal(2, 4, 5))


def _every_primitive():
    """For every primitive, a function of arrays and arrays for it."""
    kernels = {
        value.primitive.name: value
        for module in (softmax, logsumexp, rms_norm, masked_kernels, cross_entropy_kernels)
        for value in vars(module).values()
        if isinstance(value, RowKernel)
    }
    for name, kernel in kernels.items():
        call = functools.partial(kernel, tier="auto", require_kernel=False)
        call = functools.partial(call, **PARAMETERS.get(name, {}))
        specs = kernel.operands_of(**PARAMETERS.get(name, {}))
        yield pytest.param(name, call, [*map(_operand, specs)], id=name)
    name = sgemm_primitive.sgemm_p.name
    options = Options(alpha=2.0, beta=0.5)
    yield pytest.param(name, sgemm_primitive.multiply, [normal(4, 3), normal(3, 5)], id=name)
    call = functools.partial(sgemm_primitive.multiply, options=options)
    yield pytest.param(name, call, [normal(4, 3), normal(3, 5), normal(4, 5)], id=f"{name}-c")
    yield from _flash_attention()


def _flash_attention():
    """The forward pass, its tangent, and the transpose of the tangent."""
    call = Call(MOVING, 0.5, Band(None, 0, from_end=False), keeps_sums=True, moving=("q",))
    for dtype, sums in (("bfloat16", normal(2, 2, 4)), ("float32", normal(2, 2, 4, 2))):
        q, k, y = (normal(2, 4, 2, 8).astype(dtype) for _ in range(3))
        for primitive, others in (
            (flash.attention_p, ()),
            (flash.tangent_p, (sums, y, q)),
            (flash.backward_p, (sums, y, y)),
        ):
            name, run = primitive.name, functools.partial(primitive.bind, call=call)
            yield pytest.param(name, run, [q, k, k, *others], id=f"{name}-{dtype}")


EVERY_PRIMITIVE = list(_every_primitive())
every_primitive = pytest.mark.parametrize(("name", "call", "operands"), EVERY_PRIMITIVE)
