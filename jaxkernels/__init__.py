"""Drop-in JAX replacements for softmax, cross-entropy, attention softmax and float32 matmul.

`softmax`, `log_softmax` and `logsumexp` replace the functions of `jax.nn`, and `cross_entropy` replaces
optax's. They run CUDA kernels on NVIDIA GPUs, C++ kernels on CPUs, and plain JAX elsewhere.
`linear_cross_entropy` and `linear_token_log_probs` do not store the logits of a linear layer. `matmul`, `dot_general`
and `sgemm` always compute in float32. `plan_softmax`, `plan_sgemm` and `plan_attention` show which kernels a
GPU runs. `python -m jaxkernels` prints the installation and tests it.

Example:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxkernels as jk
    >>> print(jax.jit(jk.softmax)(jnp.zeros((2, 4))))
    [[0.25 0.25 0.25 0.25]
     [0.25 0.25 0.25 0.25]]
"""

from importlib import import_module as _import_module
from pkgutil import extend_path as _extend_path
from typing import TYPE_CHECKING as _TYPE_CHECKING

# extend_path finds the extension modules in the installed copy if Python imports the package from a
# checkout, which has none.
__path__ = _extend_path(__path__, __name__)

from jaxkernels import checkpoint_policies
from jaxkernels import optax as optax
from jaxkernels._attention.attention import dot_product_attention
from jaxkernels._attention.plan import AttentionPlan, plan_attention
from jaxkernels._core import registry as _registry
from jaxkernels._cpu import DeviceLimits, SgemmPlan, SoftmaxPlan
from jaxkernels._export import export_checks
from jaxkernels._linear_loss.cross_entropy import linear_cross_entropy, linear_token_log_probs
from jaxkernels._linear_loss.plan import LinearCrossEntropyPlan, plan_linear_cross_entropy
from jaxkernels._patch import patch_jax_nn, patch_optax
from jaxkernels._rows.cross_entropy import cross_entropy, token_log_probs
from jaxkernels._rows.kl_divergence import softmax_kl_divergence
from jaxkernels._rows.logsumexp import logsumexp
from jaxkernels._rows.masked import scaled_masked_softmax
from jaxkernels._rows.plan import plan_softmax
from jaxkernels._rows.rms_norm import rms_norm
from jaxkernels._rows.softmax import log_softmax, softmax
from jaxkernels._sgemm.default_algorithm import default_algorithm
from jaxkernels._sgemm.einsum import einsum, tensordot
from jaxkernels._sgemm.matmul import dot_general, matmul
from jaxkernels._sgemm.plan import plan_sgemm
from jaxkernels._sgemm.product_report import Product, ProductReport
from jaxkernels._sgemm.program import float32_matmuls
from jaxkernels._sgemm.sgemm import sgemm

if _TYPE_CHECKING:
    from jaxkernels import flax as flax

__version__ = _registry.VERSION

__all__ = [
    "AttentionPlan",
    "DeviceLimits",
    "LinearCrossEntropyPlan",
    "Product",
    "ProductReport",
    "SgemmPlan",
    "SoftmaxPlan",
    "__version__",
    "checkpoint_policies",
    "cross_entropy",
    "default_algorithm",
    "dot_general",
    "dot_product_attention",
    "einsum",
    "export_checks",
    "float32_matmuls",
    "linear_cross_entropy",
    "linear_token_log_probs",
    "log_softmax",
    "logsumexp",
    "matmul",
    "patch_jax_nn",
    "patch_optax",
    "plan_attention",
    "plan_linear_cross_entropy",
    "plan_sgemm",
    "plan_softmax",
    "rms_norm",
    "scaled_masked_softmax",
    "sgemm",
    "softmax",
    "softmax_kl_divergence",
    "tensordot",
    "token_log_probs",
]


def __getattr__(name: str) -> object:
    """Imports `jaxkernels.flax` when it is first used."""
    if name == "flax":
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names; names and submodules with one leading underscore are private."""
    return sorted(name for name in globals() if not name.startswith("_") or name.startswith("__"))
