"""The policies of jax.checkpoint: products of ours are saved where XLA's would be."""

import functools
import inspect

import gemm_cases as cases
import jax
import jax.numpy as jnp
import pytest
from jax._src import ad_checkpoint
from jax.ad_checkpoint import checkpoint_name

import jaxkernels as jk

PRODUCTS = ("jaxkernels_sgemm", "jaxkernels_cpu_product", "dot_general")
NAMES = ("dots_saveable", "dots_with_no_batch_dims_saveable", "offload_dot_with_no_batch_dims")
OTHERS = ("everything_saveable", "nothing_saveable")

HAS_REMAT3 = (
    jax.__version_info__ >= (0, 12)
    and hasattr(jax.config, "jax_remat3")
    and "trace" in inspect.signature(ad_checkpoint.CheckpointName.remat).parameters
)


@pytest.fixture(params=[False, True] if HAS_REMAT3 else [False], ids=str, autouse=True)
def _remat3(request):
    """Each test runs under both implementations of jax.checkpoint that this JAX has."""
    before = getattr(jax.config, "jax_remat3", None)
    if HAS_REMAT3:
        jax.config.update("jax_remat3", request.param)
    yield
    if HAS_REMAT3:
        jax.config.update("jax_remat3", before)


def policy_of(namespace, name):
    policy = getattr(namespace, name)
    return policy("device", "pinned_host") if name.startswith("offload") else policy


def equations(jaxpr):
    """All equations, those of inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=has_equations):
            inner = getattr(value, "jaxpr", value)  # what jax_remat3 makes again has one inside
            if has_equations(inner):
                yield from equations(inner)


def has_equations(value):
    return hasattr(value, "eqns")


def counts(function, *operands):
    """How many products there are in the program of a gradient, and how many moves to other memory."""
    gradient = jax.grad(lambda *x: jnp.sum(function(*x)), argnums=tuple(range(len(operands))))
    names = [e.primitive.name for e in equations(jax.make_jaxpr(gradient)(*operands).jaxpr)]
    return sum(name in PRODUCTS for name in names), names.count("device_put")


def sine_of(product):
    return lambda x, w: jnp.sin(product(jnp.cos(x), w))


def scanned(product):
    def layers(x, w):
        return jax.lax.scan(lambda x, w: (jnp.sin(product(x, w)), None), x, w)[0]

    return layers


def contracted(*numbers):
    return lambda dot_general: sine_of(functools.partial(dot_general, dimension_numbers=numbers))


def mapped(*axes):
    return lambda product: jax.vmap(sine_of(product), axes)


# Several contracted and free dimensions, and others in front.
rearranged = contracted(((1, 3), (0, 1)), ((), ()))
in_batches = contracted(((2,), (1,)), ((0,), (0,)))


def array(*shape):
    return jnp.asarray(cases.operand("normal", shape))


DOTS = (jk.dot_general, jax.lax.dot_general)
MATMULS = (jk.matmul, jnp.matmul)
# Functions of ours and XLA's, and operands.
CASES = {
    "matmul": (sine_of, MATMULS, (array(3, 4), array(4, 5))),
    "matmul-vector": (sine_of, MATMULS, (array(4), array(4, 5))),
    "matmul-rows": (sine_of, MATMULS, (array(2, 6, 3, 4), array(4, 5))),
    "matmul-columns": (sine_of, MATMULS, (array(3, 4), array(2, 4, 5))),
    "matmul-batch": (sine_of, MATMULS, (array(2, 3, 4), array(2, 4, 5))),
    "matmul-batch-of-one": (sine_of, MATMULS, (array(1, 3, 4), array(1, 4, 5))),
    "matmul-by-turns": (sine_of, MATMULS, (array(2, 1, 3, 4), array(1, 6, 4, 5))),
    "matmul-mixed": (sine_of, MATMULS, (array(2, 1, 3, 4), array(2, 6, 4, 5))),
    "dot-general": (rearranged, DOTS, (array(2, 3, 5, 4), array(3, 4, 6))),
    "dot-general-batch": (in_batches, DOTS, (array(2, 3, 4), array(2, 4, 5))),
    "vmap-shared": (mapped(0, None), MATMULS, (array(6, 3, 4), array(4, 5))),
    "vmap": (mapped(0, 0), MATMULS, (array(6, 3, 4), array(6, 4, 5))),
    "scan": (scanned, MATMULS, (array(3, 4), array(6, 4, 4))),
    "sgemm": (
        sine_of,
        (
            lambda x, w: jk.sgemm(x, w, array(3, 5), alpha=2.0, beta=0.5, trans_b=True),
            lambda x, w: 2 * jnp.matmul(x, w.T) + 0.5 * array(3, 5),
        ),
        (array(3, 4), array(5, 4)),
    ),
}


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
@pytest.mark.parametrize("case", CASES)
def test_as_many_products_as_with_xlas(case, name):
    """Under our policy, in the forward and backward pass, as XLA's under JAX's policy."""
    make, (ours, theirs), operands = CASES[case]
    namespace = jax.checkpoint_policies if name in OTHERS else jk.checkpoint_policies
    got = jax.checkpoint(make(ours), policy=policy_of(namespace, name))
    want = jax.checkpoint(make(theirs), policy=policy_of(jax.checkpoint_policies, name))
    assert counts(got, *operands) == counts(want, *operands)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention(dtype):
    """Its products have batch dimensions, of samples and heads."""
    x = array(2, 6, 3, 8).astype(dtype)
    layer = lambda x: jnp.sin(jk.dot_product_attention(x, x, x))  # noqa: E731
    whole, _ = counts(layer, x)
    policies = jk.checkpoint_policies
    saved, _ = counts(jax.checkpoint(layer, policy=policies.dots_saveable), x)
    again, _ = counts(jax.checkpoint(layer, policy=policies.dots_with_no_batch_dims_saveable), x)
    assert saved < again
    assert saved == whole or dtype == "bfloat16"  # bfloat16 has one product more


def test_products_of_jax_and_names_are_saved_too():
    """In one function with ours, and together with another policy."""

    def layer(x, w):
        x = jnp.sin(jk.matmul(x, w))
        x = jnp.sin(jax.lax.dot(x, w))
        x = jnp.sin(jax.lax.conv(x[None, None], w[None, None], (1, 1), "SAME")[0, 0])
        return jnp.sin(checkpoint_name(jnp.arcsinh(x), "last"))

    def operations(policy):
        function = jax.checkpoint(layer, policy=policy)
        gradient = jax.grad(lambda *x: jnp.sum(function(*x)), argnums=(0, 1))
        jaxpr = jax.make_jaxpr(gradient)(array(4, 4), array(4, 4)).jaxpr
        names = [e.primitive.name for e in equations(jaxpr)]
        return [names.count(n) for n in (*PRODUCTS, "conv_general_dilated", "asinh")]

    stock, ours = jax.checkpoint_policies, jk.checkpoint_policies.dots_saveable
    both = stock.save_from_both_policies(ours, stock.save_only_these_names("last"))
    assert operations(stock.nothing_saveable) == [4, 0, 4, 4, 2]
    assert operations(stock.dots_saveable) == [4, 0, 3, 3, 2]
    assert operations(ours) == [3, 0, 3, 3, 2]
    assert operations(both) == [3, 0, 3, 3, 1]


def test_policies_are_values():
    """Programs are found in caches by them."""
    policies = jk.checkpoint_policies
    assert policies.dots_saveable is policies.checkpoint_dots
    assert policies.dots_with_no_batch_dims_saveable is policies.checkpoint_dots_with_no_batch_dims
    assert policies.dots_saveable != policies.dots_with_no_batch_dims_saveable
    assert len({hash(policies.dots_saveable), hash(policies.dots_with_no_batch_dims_saveable)}) == 2
