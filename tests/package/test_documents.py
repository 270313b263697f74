"""README and the documents: every Python block runs unchanged, and statements about the package and others hold."""

import re
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import ROOT, SUPPORT, run_python, run_texts

import jaxkernels as jk

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "ffi/*.md", "ffi/rows/*.md", "ffi/sgemm/*.md")
    for path in ROOT.glob(pattern)
)
# Languages of fenced blocks. A block of another language is a typing error and would not be run.
LANGUAGES = {"python", "bash", "sh", "cpp", "math", ""}


def blocks(path, language):
    found = re.findall(r"^```(.*?)\n(.*?)^```$", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert {name for name, _ in found} <= LANGUAGES, path
    return [text for name, text in found if name == language]


SHARDING = ROOT / "docs" / "sharding.md"  # whose programs another test runs
PROGRAMS = {
    f"{path.relative_to(ROOT)}, block {number}": block
    for path in DOCUMENTS
    if path != SHARDING
    for number, block in enumerate(blocks(path, "python"), 1)
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Exit code and output of each program."""
    pytest.importorskip("flax")
    makes_devices = [name for name in PROGRAMS if "jax_num_cpu_devices" in PROGRAMS[name]]
    found = {}
    for names, environment in (
        ([name for name in PROGRAMS if name not in makes_devices], {}),
        (makes_devices, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": None}),
    ):
        folder = tmp_path_factory.mktemp("programs")
        ran = run_texts([PROGRAMS[name] for name in names], folder, **environment)
        found |= dict(zip(names, ran, strict=True))
    return found


@pytest.mark.xdist_group("programs of documents")  # one process runs all of them
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_python_block_is_a_program(outcomes, name):
    """By itself: somebody copies one block, not those above it as well."""
    code, output = outcomes[name]
    assert code == 0, output


def anchors(path):
    """The headings of a page as the site names them, without those in comments."""
    text = path.read_text()
    for target in re.findall(r'{% include-markdown "(\S+)" %}', text):
        text += (path.parent / target).read_text()
    text = re.sub(r"^(```|<!-- no run\n).*?^(```|-->)$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\]\(.*?\)|[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def is_made_on_the_site(page):
    """Whether a page has headings alone until the site includes documents and docstrings."""
    made = r"#.*|{% .* %}|<!-- .* -->|::: .*(?:\n {4}.*)*"
    return not re.sub(rf"^(?:{made})$", "", page.read_text(), flags=re.MULTILINE).strip()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents(path):
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), link
        assert page.suffix != ".md" or not is_made_on_the_site(page), f"{link} is empty on GitHub"
        assert not anchor or page.suffix != ".md" or anchor in anchors(page), link


def test_documents_have_programs():
    """README and 13 pages of docs."""
    assert len({name.partition(",")[0] for name in PROGRAMS}) == 14


def test_readme_has_the_commands_that_ci_runs():
    """.ci/run takes README's bash blocks by their number: the example, the short test, all tests."""
    install, short, full = blocks(ROOT / "README.md", "bash")
    assert all(len(command.strip().splitlines()) == 1 for command in (install, short, full))
    assert "pip install '.[examples,test]'" in install
    assert "examples/train_digits.py" in install
    assert short == "pytest -q -m smoke\n"
    assert full == "pytest -q -n 2 --dist loadfile\n"
    ci = (ROOT / ".ci" / "run").read_text()
    assert "readme_command 1" in ci
    assert "short=$(readme_command 2) long=$(readme_command 3)" in ci


def test_readme_is_read_in_a_minute():
    assert len((ROOT / "README.md").read_bytes()) <= 8192


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Rows are read once. Is that so?\n\n| Whatever | `beside` |\n", ""),
        ("Rows are read\nonce. Of these\nmany are long.\n", ":1: 'Of'"),
        ("Rows.\n\n- What is long\n  is slow, of\n  which some.\n", ":3: 'What'"),
        ("Rows are read beside columns.\n", ":1: 'beside'"),
    ],
)
def test_words(text, found, tmp_path):
    """.ci/words, which the lint step runs over documents and public docstrings."""
    document = tmp_path / "page.md"
    document.write_text(text)
    said, _ = run_python(ROOT / ".ci" / "words", document, expect=bool(found))
    assert found in said


def test_what_the_guide_says_is_sent(tmp_path):
    """docs/sharding.md names the right collectives for each of its programs."""
    programs_shown = blocks(SHARDING, "python")
    calls = [
        [("jax.grad(loss)", "weights, x", ["all-reduce"])],
        [
            ("jk.dot_product_attention", "heads, heads, heads", []),
            ("block", "x, up, down", ["all-reduce"]),
        ],
        [("jax.grad(loss)", "table", ["all-reduce"] * 3)],
    ]
    texts = []
    for block, programs in zip(programs_shown, calls, strict=True):
        shown = "".join(
            f"print('found', hlo.collectives(jax.jit({function}).lower({operands}).compile().as_text()))\n"
            for function, operands, _ in programs
        )
        texts.append(f"import sys\nsys.path.append({str(SUPPORT)!r})\nimport hlo\n{block}\n{shown}")
    outcomes = run_texts(texts, tmp_path, JAX_PLATFORMS="cpu", XLA_FLAGS=None)
    for (code, output), programs in zip(outcomes, calls, strict=True):
        assert code == 0, output
        found = [line for line in output.splitlines() if line.startswith("found")]
        assert found == [f"found {expected}" for _, _, expected in programs]


def test_the_table_of_versions_is_that_of_the_package():
    """Every Python that the package declares, and the oldest JAX that it takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (3\.\d+) \| (.*?) \|", install, flags=re.MULTILINE)
    prefix = "Programming Language :: Python :: "
    declared = {c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)}
    assert {python for python, _ in rows} == declared
    (oldest,) = [d.removeprefix("jax>=") for d in project["dependencies"] if d.startswith("jax>=")]
    assert [jax for _, jax in rows if "oldest" in jax] == [rows[0][1]]
    assert rows[0][1].startswith(f"{oldest}.")


def of_transformer_engine(fusion, logits, mask, scale):
    """Its plain JAX, in float64: a mask of 1, or what lies above the diagonal from the first key, is taken out."""
    wide = np.asarray(logits, np.float64) * scale
    hidden = {
        "SCALED": np.zeros(wide.shape[-2:], bool),
        "SCALED_MASKED": np.asarray(mask) != 0,
        "SCALED_UPPER_TRIANG_MASKED": ~np.tri(*wide.shape[-2:], dtype=bool),
    }[fusion]
    exponentials = np.where(hidden, 0, np.exp(wide - wide.max(-1, keepdims=True)))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("sizes", [(5, 5), (2, 4), (6, 3)])
def test_what_replaces_transformer_engine(sizes):
    """Each row of the table, as it is written there, for the lengths that it names."""
    text = (ROOT / "docs" / "attention.md").read_text()
    table = text[text.index("## Coming from TransformerEngine") : text.index("## Coming from Flax")]
    rows = re.findall(r"^\| (.*?) \| `(jk\..*?)` \|$", table, flags=re.MULTILINE)
    assert len(rows) == 4
    q, k = sizes
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.standard_normal((2, 3, q, k)), jnp.float32)
    mask = jnp.asarray(random.random((2, 1, q, k)) < 0.3, jnp.uint8).at[..., 0].set(0)
    served = []
    fusion = ""
    for theirs, ours in rows:
        fusion = (re.findall(r"SoftmaxFusionType\.(\w+)", theirs) or [fusion])[0]
        if ("q = k" in theirs and q != k) or ("other q and k" in theirs and q == k):
            continue
        served.append(fusion)
        got = eval(
            ours, {"jk": jk, "jnp": jnp, "logits": logits, "mask": mask, "s": 0.3, "q": q, "k": k}
        )
        want = of_transformer_engine(fusion, logits, mask, 0.3)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7, err_msg=ours)
    assert served == ["SCALED", "SCALED_MASKED", "SCALED_UPPER_TRIANG_MASKED"]


LABELS = jnp.zeros((2, 5), jnp.int32)
CLASSES = jax.nn.one_hot(LABELS, 4)
CTC = (jnp.zeros((2, 5)), jnp.ones((2, 3), jnp.int32), jnp.zeros((2, 3)))
LOSSES = {
    "softmax_cross_entropy": (CLASSES,),
    "safe_softmax_cross_entropy": (CLASSES,),
    "poly_loss_cross_entropy": (CLASSES,),
    "ctc_loss": CTC,
    "ctc_loss_with_forward_probs": CTC,
    "ranking_softmax_loss": (CLASSES,),
    "dice_loss": (CLASSES,),
    "multiclass_generalized_dice_loss": (CLASSES,),
    "softmax_cross_entropy_with_integer_labels": (LABELS,),
    "sigmoid_binary_cross_entropy": (CLASSES,),
    "sigmoid_focal_loss": (CLASSES,),
    "binary_dice_loss": (CLASSES,),
    "kl_divergence": (CLASSES,),
    "l2_loss": (CLASSES,),
}


def test_losses_of_optax_that_patch_jax_nn_reaches():
    """Those that docs/attention.md names, their gradients included, and no others."""
    text = (ROOT / "docs" / "attention.md").read_text()
    told = text[
        text.index("In optax 0.") : text.index("It does not reach a loss without a softmax")
    ]
    named = set(re.findall(r"`(\w+)`", told)) - {"log_softmax", "logsumexp"}

    def kernels(function):
        with jk.patch_jax_nn():
            return "jaxkernels_" in jax.jit(function).lower(jnp.ones((2, 5, 4))).as_text()

    reached = set()
    for name, arguments in LOSSES.items():

        def loss(x, name=name, arguments=arguments):
            return sum(
                jnp.sum(y) for y in jax.tree.leaves(getattr(optax.losses, name)(x, *arguments))
            )

        found = {kernels(loss), kernels(jax.grad(loss))}
        assert len(found) == 1, name
        reached |= {name} if found.pop() else set()
    assert reached == named
