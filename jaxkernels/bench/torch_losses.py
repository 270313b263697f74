"""torch's cross entropy as a contender: on the memory of JAX's arrays, and waited for as they are."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from jaxkernels.bench.suite import Arguments, Function


def is_installed() -> bool:
    """Whether torch is there to be compared with."""
    return importlib.util.find_spec("torch") is not None


class _Pending:
    """What a call gives: `jax.block_until_ready` waits for it."""

    def __init__(self, torch: Any, results: Any) -> None:
        self._torch, self.results = torch, results

    def block_until_ready(self) -> None:
        """Waits for all that torch has begun."""
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()


def make(direction: str, compiled: bool, _: Arguments) -> Function:
    """The function to time, from JAX's (x, label), or from (x, label, cotangent) of ``none``.

    Args:
        direction: as in `jaxkernels.bench.losses`, but for "log_probs".
        compiled: by ``torch.compile``.

    Raises:
        NotImplementedError: torch cannot use the memory of JAX's device.
    """
    torch: Any = importlib.import_module("torch")
    loss = torch.nn.functional.cross_entropy
    loss = torch.compile(loss) if compiled else loss
    reduction = "none" if direction == "none" else "mean"
    seen: dict[int, Any] = {}

    def tensors(arguments: Arguments) -> Any:
        if id(arguments[0]) not in seen:
            if arguments[0].device.platform != "cpu" and not torch.cuda.is_available():
                raise NotImplementedError("torch has no CUDA")
            x, label, *more = map(torch.from_dlpack, arguments)
            x.requires_grad_(direction != "loss")
            seen[id(arguments[0])] = x, label.long(), *more
        return seen[id(arguments[0])]

    def call(*arguments: Any) -> _Pending:
        x, label, *cotangent = tensors(arguments)
        x.grad = None
        value = loss(x, label, reduction=reduction)
        if direction != "loss":
            value.backward(*cotangent)
        return _Pending(torch, (value.detach(), x.grad))

    return call
