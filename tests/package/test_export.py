"""jax.export: serialised programs, for this and for other platforms."""

import functools
import inspect

import jax
import numpy as np
from primitives import every_primitive
from public_functions import computing

import jaxkernels as jk
from jaxkernels._attention import cudnn
from jaxkernels._core import registry
from jaxkernels._rows.contract import RowKernel

CHECKS = jk.export_checks()


def test_the_checks_name_every_target():
    named = {check.is_custom_call() for check in CHECKS}
    ours = {target for targets in registry.TARGETS.values() for target in targets}
    assert named == ours | set(cudnn.targets())
    assert len(CHECKS) == len(named)


def test_docstrings_name_the_checks():
    """The docstring of each function that lowers to a custom call names `export_checks()`."""
    functions = [jk.flax.dot_product_attention, *computing().values()]
    assert len(functions) > 15
    assert [f.__name__ for f in functions if "export_checks()" not in inspect.getdoc(f)] == []


@every_primitive
def test_other_platforms_compute_the_same(name, call, operands):
    """The references that they lower to."""
    kernel, options = getattr(call, "func", None), getattr(call, "keywords", {})
    if (
        not isinstance(kernel, RowKernel)
        or "cross_entropy" in name
        or "masked_softmax_grad" in name
    ):
        return  # its operands have to be the results of another one
    attributes = {n: x for n, x in options.items() if n not in ("tier", "require_kernel")}
    got = jax.jit(functools.partial(kernel.reference, **attributes))(*operands)
    np.testing.assert_allclose(got, call(*operands), rtol=4e-6, atol=4e-6)
