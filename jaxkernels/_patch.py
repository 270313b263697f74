"""patch_jax_nn and patch_optax: unchanged programs that call jax.nn or optax run this package's kernels.

Owns: the replacement of module attributes, and their restoration. Must not know: what the functions do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jaxkernels import optax
from jaxkernels._rows import logsumexp, softmax


@dataclasses.dataclass
class _Patch:
    """Module attributes that are replaced while any block is open."""

    modules: tuple[str, ...]  # the one that defines the functions, then those that re-export them
    imported: str  # the module that is imported before a block opens
    replacements: dict[str, Callable[..., Any]]
    originals: dict[str, Any] = dataclasses.field(default_factory=dict)
    open_blocks: int = 0
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Replaces the attributes; the end of the last block restores them."""
        importlib.import_module(self.imported)
        with self.lock:
            if self.open_blocks == 0:
                home = sys.modules[self.modules[0]]
                self.originals = {name: getattr(home, name) for name in self.replacements}
            self.open_blocks += 1
            self._swap(self.originals, self.replacements)
        try:
            yield
        finally:
            with self.lock:
                self.open_blocks -= 1
                if self.open_blocks == 0:
                    self._swap(self.replacements, self.originals)

    def _swap(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Replaces old functions, also in modules that were imported inside the block.

        Other attributes are users' patches and stay.
        """
        for module in map(sys.modules.get, self.modules):
            for name, function in old.items():
                if getattr(module, name, None) is function:
                    setattr(module, name, new[name])


_JAX_NN = _Patch(
    (
        "jax.nn",
        "jax.scipy.special",
        "flax.core.nn",
        "flax.linen",
        "flax.linen.activation",
        "flax.nnx",
        "flax.nnx.nn.activations",
    ),
    "jax.scipy.special",  # JAX imports it lazily
    {
        "softmax": softmax.softmax,
        "log_softmax": softmax.log_softmax,
        "logsumexp": logsumexp.logsumexp,
    },
)
_OPTAX = _Patch(
    ("optax", "optax.losses", "optax.losses._classification"),
    "optax",
    {name: getattr(optax, name) for name in optax.__all__},
)


@contextlib.contextmanager
def patch_jax_nn() -> Iterator[None]:
    """Replaces `jax.nn`'s softmax, log_softmax and logsumexp with this package's, inside a block.

    The block reaches code that calls them as attributes of `jax.nn`: the attention of flax.linen,
    Equinox, Haiku and Keras, and optax's losses with a softmax or a log-sum-exp (docs/attention.md lists
    them). It also replaces `jax.scipy.special.logsumexp`, and the three names in `flax.linen` and
    `flax.nnx` if Flax is imported before the block ends. Blocks nest, and can end in any order. The
    originals return when the last block ends, also after an exception. The function is a decorator too:
    `@patch_jax_nn()`.

    Example:
        >>> import jax
        >>> import jaxkernels as jk
        >>> with jk.patch_jax_nn():
        ...     print(jax.nn.softmax is jk.softmax)
        True
        >>> print(jax.nn.softmax is jk.softmax)
        False

    Returns:
        A context manager without a value.

    Notes:
        * The block does not reach names imported before (`from jax.nn import softmax`), nor
          `jax.nn.dot_product_attention`, which nnx.MultiHeadAttention calls without dropout: use
          `attention_fn=jaxkernels.flax.dot_product_attention` there.
        * A function keeps the softmax that it was traced with. A jitted function that was compiled before
          the block keeps jax.nn's softmax inside it, and one that is compiled inside keeps ours after
          it, for the shapes of its calls. Create the jitted function inside the block, or call
          `jax.clear_caches()`.
        * The attributes belong to the whole process: other threads see the replacement while any
          block is open.
        * jax.nn still computes a softmax without a kernel (complex, float8, a vmapped axis by name).
    """
    with _JAX_NN.block():
        yield


@contextlib.contextmanager
def patch_optax() -> Iterator[None]:
    """Replaces optax's softmax cross-entropies with this package's, inside a block.

    The replaced functions are `optax.softmax_cross_entropy_with_integer_labels`,
    `optax.softmax_cross_entropy` and `optax.safe_softmax_cross_entropy`, also as attributes of
    `optax.losses`; see `jaxkernels.optax`. The notes of `patch_jax_nn` apply. Both blocks can be open at
    once.

    Example:
        >>> import optax
        >>> import jaxkernels as jk
        >>> import jaxkernels.optax
        >>> with jk.patch_optax():
        ...     print(optax.softmax_cross_entropy is jaxkernels.optax.softmax_cross_entropy)
        True

    Returns:
        A context manager without a value. The function is a decorator too.

    Raises:
        ModuleNotFoundError: optax is not installed.
    """
    with _OPTAX.block():
        yield
