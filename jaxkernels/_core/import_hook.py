"""Runs a function once a module has been imported, without importing it.

Owns: the hook into Python's import system. Must not know: JAX.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that somebody waits for, as Python would, and calls back once they have run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _callbacks:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            execute = loader.exec_module

            def execute_and_call_back(module: ModuleType) -> None:
                execute(module)
                if module.__name__ != fullname:  # a loader may serve several
                    return
                for callback in _callbacks[fullname]:
                    callback(module)

            loader.exec_module = execute_and_call_back
        return spec


_finder = _Finder()


def after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls `callback(module)` now, if the module has been imported, and whenever it will be."""
    _callbacks.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if name in sys.modules:
        callback(sys.modules[name])
