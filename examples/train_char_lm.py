"""Trains a small Flax transformer on the standard library's source, character by character.

The loss is ``jaxkernels.cross_entropy``. ``--attention jaxkernels`` (the default) or ``flax`` chooses
the attention function of the layers. The losses of both are equal except for rounding. At the end the
model writes some Python.

Run: python examples/train_char_lm.py [--short] [--attention flax|jaxkernels]
The short form takes half a minute on two CPU cores; the full one needs a GPU.
"""

import argparse
import json
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from rich.console import Console
from rich.progress import Progress

import jaxkernels as jk
import jaxkernels.flax

# Every Python has them; a fixed list, so that a version of Python always gives the same text.
MODULES = (
    *("abc", "argparse", "ast", "bisect", "calendar", "cmd", "code", "codecs", "configparser"),
    *("contextlib", "copy", "csv", "dataclasses", "difflib", "enum", "fractions", "functools"),
    *("gettext", "heapq", "inspect", "ipaddress", "locale", "optparse", "pathlib", "pprint"),
    *("random", "shlex", "shutil", "statistics", "string", "textwrap", "tokenize", "traceback"),
)
VOCABULARY = 128  # ASCII; any other character becomes "?"
PROMPT = "\ndef "
TEMPERATURE = 0.8

ATTENTIONS = {
    "flax": linen.dot_product_attention,
    "jaxkernels": jaxkernels.flax.dot_product_attention,
}
Attention = Callable[..., jax.Array]


class Form(NamedTuple):
    """Size of the model and of the training."""

    layers: int
    heads: int
    features: int
    context: int  # characters that the model sees
    batch: int
    steps: int
    learning_rate: float


SHORT = Form(layers=2, heads=4, features=64, context=128, batch=8, steps=500, learning_rate=3e-3)
FULL = Form(layers=6, heads=6, features=384, context=512, batch=32, steps=2000, learning_rate=1e-3)


class State(NamedTuple):
    """The state that a training step updates."""

    params: Any
    moments: Any
    number: jax.Array  # number of the step; chooses the batch


Step = Callable[[State], tuple[State, jax.Array]]


class Block(linen.Module):
    """One layer of the transformer, normalised before each half."""

    heads: int
    attention: Attention

    @linen.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Maps (batch, length, features) to the same shape."""
        # No biases: the keys' bias has no effect on a softmax, so its gradient is only
        # rounding, and Adam would blow that up to full steps.
        y = linen.MultiHeadDotProductAttention(
            num_heads=self.heads, use_bias=False, attention_fn=self.attention
        )(linen.LayerNorm()(x), mask=mask)
        x = x + y
        y = linen.gelu(linen.Dense(4 * x.shape[-1])(linen.LayerNorm()(x)))
        return x + linen.Dense(x.shape[-1])(y)


class CharModel(linen.Module):
    """A decoder-only transformer."""

    form: Form
    attention: Attention

    @linen.compact
    def __call__(self, text: jax.Array) -> jax.Array:
        """Maps characters (batch, length) to logits (batch, length, VOCABULARY) of the next."""
        x = linen.Embed(VOCABULARY, self.form.features)(text)
        x = x + linen.Embed(self.form.context, self.form.features)(jnp.arange(text.shape[-1]))
        mask = linen.make_causal_mask(text, dtype=jnp.bool_)
        for _ in range(self.form.layers):
            x = Block(self.form.heads, self.attention)(x, mask)
        return linen.Dense(VOCABULARY)(linen.LayerNorm()(x))


def load_text() -> jax.Array:
    """The concatenated sources, as numbers below VOCABULARY."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    # Some modules are packages in some versions of Python.
    files = [folder / f"{name}.py" for name in MODULES]
    texts = [file.read_text(encoding="utf-8") for file in files if file.exists()]
    return jnp.asarray(np.frombuffer("".join(texts).encode("ascii", "replace"), np.uint8))


def make_training(form: Form, attention: Attention, text: jax.Array) -> tuple[State, Step]:
    """The state before the first step, and the step: jitted, and deterministic."""
    model = CharModel(form, attention)
    optimizer = optax.adamw(form.learning_rate)
    window = jnp.arange(form.context + 1)

    def loss_of(params: Any, batch: jax.Array) -> jax.Array:
        logits = cast(jax.Array, model.apply({"params": params}, batch[:, :-1]))
        return jk.cross_entropy(logits, batch[:, 1:], reduction="mean")

    @jax.jit
    def step(state: State) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(1), state.number)
        starts = jax.random.randint(key, (form.batch, 1), 0, text.size - form.context)
        batch = text[starts + window].astype(jnp.int32)
        loss, gradient = jax.value_and_grad(loss_of)(state.params, batch)
        change, moments = optimizer.update(gradient, state.moments, state.params)
        params = optax.apply_updates(state.params, change)
        return State(params, moments, state.number + 1), loss

    example = jnp.zeros((1, form.context), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), example)["params"]
    return State(params, optimizer.init(params), jnp.array(0)), step


def train(state: State, step: Step, steps: int) -> tuple[State, list[float]]:
    """Trains behind a progress bar and returns the loss of every step."""
    losses = []
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=steps)
        for number in range(steps):
            state, loss = step(state)
            losses.append(loss)
            if number % 10 == 0:  # rarely, because reading the loss waits for the device
                bar.update(task, completed=number, description=f"loss {float(loss):.3f}")
        bar.update(task, completed=steps)
    return state, [float(loss) for loss in losses]


def write(params: Any, form: Form, attention: Attention) -> str:
    """Draws one context length of characters from the model, one at a time."""
    model = CharModel(form, attention)
    prompt = jnp.array([ord(letter) for letter in PROMPT], jnp.int32)

    def next_letter(position: jax.Array, text: jax.Array) -> jax.Array:
        logits = cast(jax.Array, model.apply({"params": params}, text[None]))[0, position]
        key = jax.random.fold_in(jax.random.key(2), position)
        return text.at[position + 1].set(jax.random.categorical(key, logits / TEMPERATURE))

    text = jnp.zeros(form.context, jnp.int32).at[: prompt.size].set(prompt)
    text = jax.lax.fori_loop(prompt.size - 1, form.context - 1, next_letter, text)
    return "".join(map(chr, text))


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Trains, prints what the model writes, and returns the loss of every step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--attention", choices=tuple(ATTENTIONS), default="jaxkernels")
    parser.add_argument("--short", action="store_true", help="a tiny model, few steps")
    parser.add_argument("--steps", type=int, help="number of steps; default: that of the form")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the loss curve")
    options = parser.parse_args(arguments)
    form = SHORT if options.short else FULL
    form = form._replace(steps=options.steps or form.steps)
    attention = ATTENTIONS[options.attention]
    device = jax.devices()[0].device_kind
    # On a GPU Flax's products would be TF32, whose errors of 3e-4 would separate the two loss curves
    # at once. Ours are float32 under any setting.
    with jax.default_matmul_precision("highest"):
        text = load_text()
        print(f"{text.size} characters, {options.attention}'s attention, {device}", flush=True)
        state, losses = train(*make_training(form, attention, text), form.steps)
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps")
        print(f"the model writes:\n{write(state.params, form, attention)}\n")
    if options.json:
        options.json.write_text(json.dumps({"losses": losses}) + "\n")
    return losses


if __name__ == "__main__":
    main()
