"""Docstrings have an "Example:"; the reader of docstrings knows the section as "Examples:"."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Names the section as Griffe does, so that what follows is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute that was read."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
