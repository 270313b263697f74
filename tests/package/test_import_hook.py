"""Functions that run once a module has been imported."""

import importlib
import inspect
import sys

import pytest

from jaxkernels._core import import_hook


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that nobody has imported."""
    name = f"imported_later_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    import_hook._callbacks.pop(name, None)


def test_the_function_runs_after_the_module(module):
    seen = []
    import_hook.after_import(module, lambda loaded: seen.append(loaded.value))
    import_hook.after_import(module, lambda loaded: seen.append(loaded.__name__))
    assert seen == []
    loaded = importlib.import_module(module)
    assert seen == [1, module]
    assert inspect.getsource(loaded) == "value = 1\n"


def test_a_module_that_is_there_is_not_waited_for(module):
    loaded = importlib.import_module(module)
    seen = []
    import_hook.after_import(module, seen.append)
    assert seen == [loaded]


def test_a_module_that_is_loaded_again_gets_its_functions_again(module):
    seen = []
    import_hook.after_import(module, seen.append)
    importlib.reload(importlib.import_module(module))
    assert len(seen) == 2


def test_a_module_that_does_not_exist_stays_a_module_that_does_not_exist(tmp_path):
    name = f"never_{tmp_path.name}"
    import_hook.after_import(name, lambda loaded: pytest.fail(f"{loaded} exists"))
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(name)
    del import_hook._callbacks[name]
