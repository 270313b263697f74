"""patch_jax_nn and patch_optax: programs that call jax.nn's or optax's functions run this package's kernels, unchanged.

Owns: which attributes are replaced, and their return. Must not know: what the functions do.
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
    """Attributes of modules that are replaced while any block is open.

    Attributes:
        imported: modules that are imported before the first block opens.
        home: the module whose own functions are replaced.
        modules: that module, and those that hold names of their own for its functions.
        replacements: by name.
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
        """Replaces them, and takes the replacements back when the last block ends."""
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
                        # What is not the home's is somebody's own patch, and stays.
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
                    # A module that was imported inside the block took ours from the home.
                    if getattr(sys.modules.get(module), name, None) is replacement:
                        setattr(sys.modules[module], name, self._originals[self.home, name])
            self._originals.clear()


_JAX_NN = _Patch(
    imported=("jax.scipy.special",),  # JAX loads it late
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
    """Replaces `jax.nn`'s softmax, log_softmax and logsumexp by this package's, inside a block.

    It reaches code that calls them as attributes of `jax.nn`, which is what the attention of
    flax.linen, Equinox, Haiku and Keras does, and optax's losses that have a softmax or a
    log-sum-exp (docs/attention.md lists them); `jax.scipy.special.logsumexp`; and the three names in
    `flax.linen` and `flax.nnx`, if Flax is imported before the block ends. Blocks nest,
    in any order of ending; the originals are back when the last one ends, also by an exception. The
    function can be a decorator as well: `@patch_jax_nn()`.

    Returns:
        A context manager that gives None.

    Notes:
        * A name that somebody else has taken, `from jax.nn import softmax`, is out of reach, and so
          is `jax.nn.dot_product_attention`, which nnx.MultiHeadAttention calls when it has no
          dropout: use `attention_fn=jaxkernels.flax.dot_product_attention` there.
        * What a function calls is decided when it is traced. A jitted function that was compiled
          before the block keeps jax.nn's softmax inside it, and one that is compiled inside keeps
          ours after it, for the shapes that it was called with. Make the jitted function inside the
          block, or call `jax.clear_caches()`, where that matters.
        * The attributes belong to the whole process: other threads see the replacement while any
          block is open.
        * A softmax that has no kernel here (complex, float8, a vmapped axis by name) is still
          jax.nn's own.

    Example:
        >>> import jax
        >>> import jaxkernels as jk
        >>> with jk.patch_jax_nn():
        ...     print(jax.nn.softmax is jk.softmax)
        True
        >>> print(jax.nn.softmax is jk.softmax)
        False
    """
    with _JAX_NN.block():
        yield


@contextlib.contextmanager
def patch_optax() -> Iterator[None]:
    """Replaces optax's cross entropies of a softmax by this package's, inside a block.

    These are `optax.softmax_cross_entropy_with_integer_labels`, `optax.softmax_cross_entropy` and
    `optax.safe_softmax_cross_entropy`, also as attributes of `optax.losses`; see `jaxkernels.optax`.
    Blocks nest, as those of `patch_jax_nn`, whose notes hold here. Both may be open at once.

    Returns:
        A context manager that gives None. The function can be a decorator as well.

    Raises:
        ModuleNotFoundError: optax is not installed.

    Example:
        >>> import optax
        >>> import jaxkernels as jk
        >>> import jaxkernels.optax
        >>> with jk.patch_optax():
        ...     print(optax.softmax_cross_entropy is jaxkernels.optax.softmax_cross_entropy)
        True
    """
    with _OPTAX.block():
        yield
