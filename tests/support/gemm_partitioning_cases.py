"""Sharded operands of matrix products, and the primitive in the form that it has on CUDA; for the tests of partitioning.

On a CPU the primitive is XLA's product, which XLA splits; on CUDA it is a custom call inside `partitioning`. The
tests of the call put XLA's product in its place, so that they test only the partitioning rule.
"""

import functools

import gemm_cases as cases
import jax
from hlo import collectives
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxkernels._core import partitioned_calls
from jaxkernels._sgemm import primitive

A = cases.operand("normal", (16, 24))
B = cases.operand("normal", (24, 32), seed=1)
C = cases.operand("normal", (16, 32), seed=2)


def split(mesh, array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def collectives_of(function, *arrays):
    """Names of the collectives in the compiled program, and its result."""
    compiled = jax.jit(function).lower(*arrays).compile()
    return collectives(compiled.as_text()), compiled(*arrays)


# The primitive with the lowering that it has on CUDA, but XLA's product as the local one.
product_p = Primitive("product_as_on_cuda")
product_p.def_abstract_eval(primitive._abstract_eval)
mlir.register_lowering(product_p, functools.partial(primitive._lower_kernel, primitive.reference))
partitioned_calls.needs_devices_for_lowering(product_p)


def wrapped(options, *arrays):
    """The program of the CUDA lowering, with XLA's product as the local one."""
    return product_p.bind(*arrays, options=options)


def products(options):
    return {
        "primitive": functools.partial(primitive.multiply, options=options),
        "partitioned": functools.partial(wrapped, options),
    }


# Operands' shardings, and the collectives that they cost.
SHARDINGS = {
    "rows": (("a", None), (None, None), []),
    "columns": ((None, None), (None, "b"), []),
    "rows-and-columns": (("a", None), (None, "b"), []),
    "rows-over-all": ((("a", "b"), None), (None, None), []),
    "contraction": ((None, "a"), ("a", None), ["all-reduce"]),
    "contraction-and-rows": (("b", "a"), ("a", None), ["all-reduce"]),
    "contraction-of-one": ((None, "a"), (None, None), ["all-reduce"]),
}
