"""The parts of a release: its version, its description on PyPI, the workflows that publish it."""

import os
import re
import runpy
import shutil
import tomllib

import pytest
from programs import ROOT, run_python

import jaxkernels as jk

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def test_the_version_stands_in_pyproject_and_the_others_follow():
    assert jk.__version__ == VERSION
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [VERSION]
    changes = (ROOT / "CHANGELOG.md").read_text()
    (released,) = re.findall(r'^date-released: "(\S+)"$', citation, re.MULTILINE)
    versions = re.findall(r"^## \[(\d\S*)\] - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    assert versions[0] == (VERSION, released)
    for name in ["Unreleased", *(number for number, _ in versions)]:
        assert re.search(rf"^\[{re.escape(name)}\]: https://\S+$", changes, re.MULTILINE), name
    assert f"compare/v{VERSION}...HEAD" in changes


def test_the_description_on_pypi_has_no_relative_link():
    """.ci/absolute_links on README, whose links lead to files that are there."""
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]*)\)", text)
    paths = {link for link in links if not link.startswith(("https:", "#"))}
    assert paths
    assert all((ROOT / path.partition("#")[0]).is_file() for path in paths)
    text = runpy.run_path(str(ROOT / ".ci" / "absolute_links"))["absolute"](text, VERSION)
    absolute = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", text)
    assert len(absolute) == len(links)
    assert all(link.startswith(("https://", "#")) for _, link in absolute)
    pages, files = (f"jaxkernels/jaxkernels/{place}v{VERSION}/" for place in ("blob/", ""))
    for is_picture, link in absolute:
        if any(link.endswith(path) for path in paths):
            assert (files if is_picture else pages) in link


@workflows
def test_actions_are_pinned_and_scripts_are_there(path):
    text = path.read_text()
    actions = re.findall(r"uses: (.*)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    for script in re.findall(r"\.ci/\w+", text):
        assert os.access(ROOT / script, os.X_OK), script


@pytest.mark.parametrize("path", [".ci/release", ".github/workflows/release.yml"])
def test_a_release_makes_links_absolute_before_it_builds(path):
    text = (ROOT / path).read_text()
    assert 0 < text.index(".ci/absolute_links\n") < text.index("build --sdist")


def test_one_workflow_publishes_by_trusted_publishing():
    publish = [path.stem for path in WORKFLOWS if "pypi-publish" in path.read_text()]
    assert publish == ["release"]
    assert "id-token: write" in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert not any("secrets." in path.read_text() for path in WORKFLOWS)


COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_what_was_compiled_is_copied_wherever_it_lies(tmp_path):
    """.ci/compile_once compares compiler, sources and headers by content, not by path."""
    kept = tmp_path / "kept"
    kept.mkdir()

    def compile_in(name, value):
        folder = tmp_path / name
        (folder / "include").mkdir(parents=True)
        (folder / "include" / "value.h").write_text(f"#define VALUE {value}\n")
        (folder / "source.cc").write_text('#include "value.h"\nint value() { return VALUE; }\n')
        compiler = folder / "c++"
        compiler.symlink_to(COMPILER)
        made = folder / "object.o"
        places = ["-isystem", folder / "include", f"-L{folder}", "-MD", "-MF", folder / "rule"]
        options = [*places, "-o", made, "-c", folder / "source.cc"]
        program = ROOT / ".ci" / "compile_once"
        run_python(program, compiler, *options, JK_COMPILED_ONCE=str(kept))
        return made.read_bytes(), len(list(kept.iterdir()))

    first, count = compile_in("first", 1)
    assert count == 1
    assert compile_in("second", 1) == (first, 1)
    other, count = compile_in("third", 2)
    assert other != first
    assert count == 2
