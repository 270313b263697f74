"""torch's cross entropy as a contender, on the memory of JAX's arrays."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from jaxkernels.bench.suite import Function


def is_installed() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


class _Pending:
    """The results of a call, in a form for which `jax.block_until_ready` waits."""

    def __init__(self, torch: Any, results: Any) -> None:
        self._torch, self.results = torch, results

    def block_until_ready(self) -> None:
        """Waits for all of torch's GPU work."""
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()


def function_of(direction: str, compiled: bool) -> Function:
    """The function to time, of JAX's (label, x), or of (label, cotangent, x) for ``none``.

    It raises NotImplementedError if torch cannot use the memory of JAX's device.
    """
    torch: Any = importlib.import_module("torch")
    loss = torch.nn.functional.cross_entropy
    loss = torch.compile(loss) if compiled else loss
    reduction = "none" if direction == "none" else "mean"
    seen: dict[int, Any] = {}

    def call(*arguments: Any) -> _Pending:
        key = id(arguments[-1])
        if key not in seen:
            if arguments[-1].device.platform != "cpu" and not torch.cuda.is_available():
                raise NotImplementedError("torch has no CUDA")
            label, *cotangent, x = map(torch.from_dlpack, arguments)
            seen[key] = label.long(), cotangent, x.requires_grad_(direction != "loss")
        label, cotangent, x = seen[key]
        x.grad = None
        value = loss(x, label, reduction=reduction)
        if direction != "loss":
            value.backward(*cotangent)
        return _Pending(torch, (value.detach(), x.grad))

    return call
