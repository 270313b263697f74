"""patch_jax_nn and patch_optax: unchanged programs that call jax.nn or optax run this package's kernels.

Owns: the replacement of module attributes, and their restoration. Must not know: what the functions do.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jaxkernels._rows import logsumexp, optax_losses, softmax


class _Patch:
    """Module attributes that are replaced while any block is open.

    Attributes:
        imported: modules that are imported before the first block opens.
        home: the module that defines the replaced functions.
        modules: `home`, and the modules that re-export its functions.
        replacements: our functions, by name.
    """

    def __init__(
        self,
        imported: tuple[str, ...],
        home: str,
        modules: tuple[str, ...],
        replacements: dict[str, Callable[..., Any]],
    ) -> None:
        self.imported = imported
        self.home = home
        self.modules = modules
        self.replacements = replacements
        self._lock = threading.Lock()
        self._open_blocks = 0
        self._originals: dict[tuple[str, str], Any] = {}

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Replaces the attributes; the end of the last block restores them."""
        self._enter()
        try:
            yield
        finally:
            self._exit()

    def _enter(self) -> None:
        for module in self.imported:
            importlib.import_module(module)
        with self._lock:
            if self._open_blocks == 0:
                own = {name: getattr(sys.modules[self.home], name) for name in self.replacements}
                for module in self.modules:
                    for name, original in own.items():
                        # Attributes that differ from the home's function are users' patches and stay.
                        if getattr(sys.modules.get(module), name, None) is original:
                            self._originals[module, name] = original
            for module, name in self._originals:
                setattr(sys.modules[module], name, self.replacements[name])
            self._open_blocks += 1

    def _exit(self) -> None:
        with self._lock:
            self._open_blocks -= 1
            if self._open_blocks > 0:
                return
            for module in self.modules:
                for name, replacement in self.replacements.items():
                    # A module that was imported inside the block re-exports our function.
                    if getattr(sys.modules.get(module), name, None) is replacement:
                        setattr(sys.modules[module], name, self._originals[self.home, name])
            self._originals.clear()


_JAX_NN = _Patch(
    imported=("jax.scipy.special",),  # JAX imports it lazily
    home="jax.nn",
    modules=(
        "jax.nn",
        "jax.scipy.special",
        "flax.core.nn",
        "flax.linen",
        "flax.linen.activation",
        "flax.nnx",
        "flax.nnx.nn.activations",
    ),
    replacements={
        "softmax": softmax.softmax,
        "log_softmax": softmax.log_softmax,
        "logsumexp": logsumexp.logsumexp,
    },
)
_OPTAX = _Patch(
    imported=("optax",),
    home="optax",
    modules=("optax", "optax.losses", "optax.losses._classification"),
    replacements={
        function.__name__: function
        for function in (
            optax_losses.softmax_cross_entropy_with_integer_labels,
            optax_losses.softmax_cross_entropy,
            optax_losses.safe_softmax_cross_entropy,
        )
    },
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
