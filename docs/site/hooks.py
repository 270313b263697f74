"""Hooks of the site: links out of docs/, the list of examples, formulas, names that lead to the reference.

If a page includes a whole document of the repository, links to that document lead to the page. Links to other files lead
to the repository itself, whose address is in `mkdocs.yml`.
"""

import ast
import html as characters
import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
EXAMPLES = "<!-- examples -->"  # the list of examples replaces this

_log = logging.getLogger("mkdocs.plugins.site")  # with --strict a warning ends the build
_WHOLE = re.compile(r'^{% include-markdown "(\S+)"[^%]*%}$', re.MULTILINE)
_TARGET = re.compile(r'(\]\(|\bsrc=")([^\s()"]+)')
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {2,3}(?=\S)", re.MULTILINE)
_REFERENCE = re.compile(r"^::: (\S+)$", re.MULTILINE)
# Code in these elements is not changed.
_KEPT = re.compile(r"(<(a|pre|h[1-6]|autoref)\b.*?</\2>)", re.DOTALL)
_NARROW = re.compile(r"<(t[dh]|h\d)\b.*?</\1>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+|(?<=-name\">)[^<]+")
_FORMULA = re.compile(r'\$<code>([^<]+)</code>\$|<div class="formula">(.*?)</div>', re.DOTALL)
_NAME = re.compile(r"<code>((?:jk\.|jaxkernels\.)?[\w.]+)</code>")


def places() -> dict[str, str]:
    """The page of each document of the repository that is included as a whole."""
    found = {}
    for page in DOCS.rglob("*.md"):
        for target in _WHOLE.findall(page.read_text()):
            document = (page.parent / target).resolve().relative_to(ROOT)
            found[document.as_posix()] = page.relative_to(DOCS).as_posix()
    return found


def references() -> set[str]:
    """The names that have a place in the reference."""
    pages = (DOCS / "reference").glob("*.md")
    return {name for page in pages for name in _REFERENCE.findall(page.read_text())}


def examples() -> str:
    """A section for each file of examples/: its docstring, and the file. Files that are no program come last."""
    found = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text()
        found.append((path, source, ast.get_docstring(ast.parse(source)) or ""))
    sections = []
    for path, source, text in sorted(found, key=lambda each: "Run:" not in each[2]):
        # The command, and text after it.
        shown_text = re.sub(r"^Run: (.*?)(  .*)?$", r"Run: `\1`\2", text, flags=re.MULTILINE)
        shown = "".join(f"    {line}\n" if line else "\n" for line in source.splitlines())
        fenced = f"    ````python\n{shown}    ````\n"
        sections.append(f'## {path.name}\n\n{shown_text}\n\n??? note "The file"\n{fenced}')
    return "\n".join(sections)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called when the plugins have included what a page includes."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    to = _link(folder, page.file.src_uri, config["extra"]["repository"])
    if EXAMPLES in markdown:
        return markdown.replace(EXAMPLES, examples())
    parts = _FENCED.split(markdown)
    # The text of a list item has two or three spaces here, as GitHub wants it, and four on the site.
    parts[::2] = [_INDENTED.sub("    ", text) for text in parts[::2]]
    return _TARGET.sub(lambda found: found[1] + to(found[2]), "".join(parts))


def _link(folder: str, page: str, repository: str) -> Callable[[str], str]:
    """Maps the target of a link on a page; targets within docs/ do not change."""
    raw = repository.replace("//github.com", "//raw.githubusercontent.com")
    prefixes = (f"{repository}/blob/main/", f"{repository}/raw/main/", f"{raw}/main/")
    by_document = places()

    def to(target: str) -> str:
        path, hash_, anchor = target.partition("#")
        absolute = next((path.removeprefix(p) for p in prefixes if path.startswith(p)), None)
        if absolute is None and not path.startswith("../"):
            return target
        document = absolute or posixpath.normpath(posixpath.join(folder, path))
        name = posixpath.basename(document)
        if document == f"examples/{name}" and name.endswith(".py"):
            document, hash_, anchor = "docs/examples.md", "#", name.replace(".", "")
        if document in by_document:
            document = posixpath.join("docs", by_document[document])
        if document.startswith("docs/"):
            return posixpath.relpath(document, folder) + hash_ + anchor
        if not (ROOT / document).exists():
            _log.warning("%s links to %s, which does not exist", page, document)
        return f"{repository}/blob/main/{document}{hash_}{anchor}"

    return to


def typeset(html: str) -> str:
    """Makes MathML, which browsers render by themselves, of the TeX in $`...`$ and in blocks of `math`."""

    def formula(found: re.Match[str]) -> str:
        from latex2mathml.converter import convert  # only pages with formulas need it

        tex = characters.unescape(found[1] or found[2]).strip()
        if found[1]:
            return convert(tex)
        return f'<div class="formula">{convert(tex, display="block")}</div>'

    return _FORMULA.sub(formula, html)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Names of the package lead to the reference. In tables and headings, code may be broken after `_`."""
    html = typeset(html)
    bare = page.file.src_uri.startswith("reference/")
    known = references()

    def linked(found: re.Match[str]) -> str:
        name = re.sub(r"^jk\.", "jaxkernels.", found[1])
        if bare and f"jaxkernels.{name}" in known:
            name = f"jaxkernels.{name}"
        if name not in known:
            return found[0]
        return f'<autoref identifier="{name}" optional>{found[0]}</autoref>'

    parts = _KEPT.split(html)
    for i in range(0, len(parts), 3):  # text, kept element, its tag, text, ...
        parts[i] = _NAME.sub(linked, parts[i])
    html = "".join(part for i, part in enumerate(parts) if i % 3 != 2)

    def breakable(code: re.Match[str]) -> str:
        return re.sub(r"[_.,(=]", r"\g<0><wbr>", code[0])

    return _NARROW.sub(lambda narrow: _CODE.sub(breakable, narrow[0]), html)
