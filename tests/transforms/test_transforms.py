"""Every public function under JAX's transformations, against plain JAX under the same ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ON_GPU
from jax.test_util import check_grads
from public_functions import FUNCTIONS, MAIN
from transformations import TRANSFORMS, assert_same, loss, orders

pytestmark = pytest.mark.usefixtures("exact_products", "small_chunks")

# Functions that are not in MAIN run these on a CPU, where compiling is what costs. test_mapped_transforms.py maps
# every subset of operands along the first axis, and has second derivatives.
FEW = ("call", "value-and-grad", "jvp", "vmap-last-axis", "vmap-grad")
# These do not run the others of the second and third order on a CPU: they have cross_entropy's rules, or plain JAX.
# test_mapped_transforms.py has their reverse-over-reverse.
MEANS = ("cross_entropy-mean", "linear_cross_entropy-mean")
FEWER = ("forward-over-forward", "reverse-over-reverse", "third-order")
# The short test has these.
SMOKE = (
    *("softmax", "log_softmax"),
    *("cross_entropy-options", "cross_entropy-scaled", "cross_entropy-none"),
)


def transforms_of(name):
    if ON_GPU:
        return TRANSFORMS
    if name not in MAIN:
        return {name: TRANSFORMS[name] for name in FEW}
    return {key: of for key, of in TRANSFORMS.items() if name not in MEANS or key not in FEWER}


@functools.cache
def results(name):
    """Results of ours and of plain JAX under every transformation, from one program."""
    function = FUNCTIONS[name]

    def program(operands):
        found = []
        for f in (function.ours, function.peer):
            moving, xs = function.of_moving(f, operands)
            some = transforms_of(name)
            found.append({name: of(moving, *xs) for name, of in some.items()})
        return found

    return jax.device_get(jax.jit(program)(function.draw()))


def cases(names):
    found = []
    for name in names:
        marks = [pytest.mark.xdist_group(f"transforms of {name}")]  # they share a program
        if name in SMOKE:
            marks.append(pytest.mark.smoke)
        for transform in transforms_of(name):
            found.append(pytest.param(name, transform, marks=marks))
    return pytest.mark.parametrize(("name", "transform"), found)


@cases(MAIN)
def test_transform(name, transform):
    got, want = (of[transform] for of in results(name))
    assert_same(got, want, FUNCTIONS[name].tolerance)


@cases([name for name in FUNCTIONS if name not in MAIN])
def test_transform_of_other_functions(name, transform):
    test_transform(name, transform)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in MAIN
        for dtype in FUNCTIONS[name].dtypes[1:]
        if not FUNCTIONS[name].closed  # logits of a layer are rounded
    ],
)
def test_other_dtypes(name, dtype):
    """Against plain JAX in float64, from the same rounded operands; gradients have their dtype."""
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        drawn = function.draw(dtype)
        wide = [x.astype(np.float64) if x.dtype == dtype else x for x in drawn]
        moving, xs = function.of_moving(function.ours, drawn)
        peer, wide_xs = function.of_moving(function.peer, wide)
        got = jax.jit(functools.partial(orders, moving))(*xs)
        want = jax.jit(functools.partial(orders, peer))(*wide_xs)
    kept = "float32" if function.is_wide and dtype != "float64" else dtype
    expected = [{kept}, {dtype}, {kept}, {dtype}]
    assert [{str(a.dtype) for a in jax.tree.leaves(part)} for part in got] == expected
    eps = [float(jnp.finfo(kept).eps), *[float(jnp.finfo(dtype).eps)] * 3]
    for part, truth, unit in zip(got, want, eps, strict=True):
        for a, b in zip(jax.tree.leaves(part), jax.tree.leaves(truth), strict=True):
            atol = 16 * unit * max(1.0, float(np.max(np.abs(b))))
            np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "name",
    [
        *(
            name
            for name in MAIN
            if "float64" in FUNCTIONS[name].dtypes and (ON_GPU or name != MEANS[0])
        ),
        "masked-scale",
    ],
)
def test_differences(name):
    """Independent of any formula: numerical derivatives, in float64, of orders 1 and 2."""
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        moving, xs = function.of_moving(function.ours, function.draw("float64"))
        check_grads(jax.jit(loss(moving)), xs, order=2, atol=1e-5, rtol=1e-5)
