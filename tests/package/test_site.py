"""The documentation site, without mkdocs: what its pages have to have, and what its hooks make of them."""

import re
import types

import pytest
from programs import ROOT, module_of, run_python
from public_functions import computing

import jaxkernels as jk
import jaxkernels.optax


def public_names():
    """Names that a user may import: the package's and its modules', without what these import."""
    policies = {
        f"jaxkernels.checkpoint_policies.{name}"
        for name, value in vars(jk.checkpoint_policies).items()
        # A policy is a function of this module, or an object of a class of it.
        if not name.startswith("_")
        and getattr(value, "__module__", None) == "jaxkernels.checkpoint_policies"
    }
    losses = {f"jaxkernels.optax.{name}" for name in jaxkernels.optax.__all__}
    modules = {"jaxkernels.flax.dot_product_attention", "jaxkernels.optax", "jaxkernels.typing"}
    return {f"jaxkernels.{name}" for name in jk.__all__} | policies | losses | modules


def test_every_public_name_has_its_place_in_the_reference():
    """Each name has exactly one place. The command line has a page of its own."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    places = [
        name
        for page in pages
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
    ]
    assert len(places) == len(set(places))
    assert set(places) - {"jaxkernels.__main__"} == public_names()


def table(text, title):
    """The names in the first column of the table with this title, which may be several in a cell."""
    rows = text[text.index(f"| {title} |") :].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([\w.-]+)", row.split("|")[1])}


def test_what_runs_where_has_every_function():
    text = (ROOT / "docs" / "what_runs_where.md").read_text()
    assert table(text, "function") == {*computing(), "flax.dot_product_attention"}


def test_the_reference_has_the_options_of_the_command_lines(capsys):
    from jaxkernels.bench.__main__ import SUITES
    from jaxkernels.bench.options import build_parser

    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert table(text, "operation") == {suite.name for suite in SUITES}
    of_bench, of_verify = text.split("## python -m jaxkernels.verify")
    options = table(of_bench, "option")
    for suite in SUITES:
        with pytest.raises(SystemExit):
            build_parser(SUITES).parse_args([suite.name, "--help"])
        assert options <= set(re.findall(r"--[\w-]+", capsys.readouterr().out)), suite.name
    helped, _ = run_python("-m", "jaxkernels.verify", "--help")
    described = set(re.findall(r"^  (--[\w-]+)", helped, flags=re.MULTILINE))
    assert table(of_verify, "option") == described


@pytest.fixture(scope="module")
def hooks():
    """The module of the site's hooks, which does not import mkdocs."""
    return module_of(ROOT / "docs" / "site" / "hooks.py")


REPOSITORY = "https://github.com/jaxkernels/jaxkernels"


def markdown(hooks, name, text):
    """The text of a page as the hooks leave it."""
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=name))
    return hooks.on_page_markdown(text, page=page, config={"extra": {"repository": REPOSITORY}})


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("../losses.md#memory", "../losses.md#memory"),
        ("../../ffi/sgemm/README.md", "sgemm.md"),
        ("../../CONTRIBUTING.md#test", "../contributing.md#test"),
        ("../../examples/README.md", "../examples.md"),
        ("../../examples/gaussian_process.py", "../examples.md#gaussian_processpy"),
        ("../../ffi/core/pack.cuh", f"{REPOSITORY}/blob/main/ffi/core/pack.cuh"),
        (f"{REPOSITORY}/blob/main/docs/losses.md", "../losses.md"),
        (f"{REPOSITORY}/raw/main/docs/performance/map.svg", "../performance/map.svg"),
        ("https://arxiv.org/abs/1805.02867", "https://arxiv.org/abs/1805.02867"),
    ],
)
def test_links_of_the_site(hooks, target, wanted):
    """Links of a page in docs/how lead to another page of the site, or to the repository."""
    assert markdown(hooks, "how/map.md", f"[a]({target})") == f"[a]({wanted})"


def test_lists_within_lists(hooks):
    """Lists are indented by four columns; fenced blocks keep their indentation."""
    text = "- a\n  - b\n\n```\nif x:\n  y\n```\n"
    assert markdown(hooks, "faq.md", text) == text.replace("  - b", "    - b")


def test_code_in_tables_may_be_broken(hooks):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="faq.md"))
    found = hooks.on_page_content("<td><code>a_b</code> c_d</td><code>e_f</code>", page=page)
    assert found == "<td><code>a_<wbr>b</code> c_d</td><code>e_f</code>"


def test_formulas(hooks):
    """TeX becomes MathML, inline and in a block; code and money do not change."""
    pytest.importorskip("latex2mathml")
    found = hooks.typeset(
        '$<code>x &lt; y_j</code>$ <code>x</code> $1\n<div class="formula">\\ell\n</div>'
    )
    assert found.count("<math ") == 2
    assert "<mo>&#x0003C;</mo><msub><mi>y</mi><mi>j</mi></msub>" in found
    assert re.search('<div class="formula"><math .*display="block">', found)
    assert found.count("<code>x</code> $1") == 1


def test_the_site_lists_every_example(hooks):
    assert hooks.EXAMPLES in (ROOT / "docs" / "examples.md").read_text()
    listed = re.findall(r"^## (\S+)\n\n(.+)", hooks.examples(), flags=re.MULTILINE)
    files = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    assert sorted(name for name, _ in listed) == sorted(files)
    assert listed[-1][0] == "comparison.py"  # no program
    for name, sentence in listed:
        assert files[name].startswith(f'"""{sentence}')
