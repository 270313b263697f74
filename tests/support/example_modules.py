"""The examples as modules, whose `main` a test calls."""

import importlib.util
import sys

import pytest
from programs import ROOT

EXAMPLES = ROOT / "examples"


def example(name):
    """The example as a module; flax wants to find it among the modules that are loaded."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)  # some import one another
        spec.loader.exec_module(module)
    return module
