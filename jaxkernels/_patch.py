"""patch_jax_nn: programs that call jax.nn.softmax run this package's kernels, unchanged.

Owns: which attributes are replaced, and their return. Must not know: softmax.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from jaxkernels._rows import logsumexp, softmax

_REPLACEMENTS = {
    "softmax": softmax.softmax,
    "log_softmax": softmax.log_softmax,
    "logsumexp": logsumexp.logsumexp,
}
# jax.nn itself, and the modules that hold names of their own for its functions.
_MODULES = (
    "jax.nn",
    "jax.scipy.special",
    "flax.core.nn",
    "flax.linen",
    "flax.linen.activation",
    "flax.nnx",
    "flax.nnx.nn.activations",
)

_lock = threading.Lock()
_open_blocks = 0
_originals: dict[tuple[str, str], Any] = {}


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
    _enter()
    try:
        yield
    finally:
        _exit()


def _enter() -> None:
    global _open_blocks
    importlib.import_module("jax.scipy.special")  # JAX loads it late
    with _lock:
        if _open_blocks == 0:
            jax_nn = {name: getattr(sys.modules["jax.nn"], name) for name in _REPLACEMENTS}
            for module in _MODULES:
                for name, original in jax_nn.items():
                    # What is not jax.nn's is somebody's own patch, and stays.
                    if getattr(sys.modules.get(module), name, None) is original:
                        _originals[module, name] = original
        for module, name in _originals:
            setattr(sys.modules[module], name, _REPLACEMENTS[name])
        _open_blocks += 1


def _exit() -> None:
    global _open_blocks
    with _lock:
        _open_blocks -= 1
        if _open_blocks > 0:
            return
        for module in _MODULES:
            for name, replacement in _REPLACEMENTS.items():
                # A module that was imported inside the block took ours from jax.nn.
                if getattr(sys.modules.get(module), name, None) is replacement:
                    setattr(sys.modules[module], name, _originals["jax.nn", name])
        _originals.clear()
