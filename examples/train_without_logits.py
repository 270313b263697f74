"""Trains a language model over 16384 classes without storing its logits.

The model is that of ``train_char_lm.py``, but a token is a pair of characters. Its last layer is the
table of embeddings, and its loss ``jaxkernels.linear_cross_entropy``, which computes the logits of some
tokens at a time. The example also trains the plain form, ``jaxkernels.cross_entropy`` of all logits. It
prints the losses of both, and the memory that XLA reports for each compiled step, not counting arguments
and results.

Run: python examples/train_without_logits.py [--steps N] [--max-megabytes M]
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from flax import linen
from train_char_lm import ATTENTIONS, VOCABULARY, Block, Form, State, load_text

import jaxkernels as jk

CLASSES = VOCABULARY**2
FORM = Form(layers=2, heads=4, features=64, context=64, batch=16, steps=30, learning_rate=3e-3)

# The mean loss of features (..., H), the table of embeddings (V, H) and the tokens that come next (...).
Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Result(NamedTuple):
    """The findings of one training."""

    losses: list[float]
    temporary_bytes: int  # memory of a training step, not counting arguments and results


class PairModel(linen.Module):
    """A decoder-only transformer that returns features and the table of its last layer."""

    form: Form

    @linen.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps tokens (batch, length) to features (batch, length, H) and the table (V, H)."""
        embed = linen.Embed(CLASSES, self.form.features)
        x = embed(tokens)
        x = x + linen.Embed(self.form.context, self.form.features)(jnp.arange(tokens.shape[-1]))
        mask = linen.make_causal_mask(tokens, dtype=jnp.bool_)
        for _ in range(self.form.layers):
            x = Block(self.form.heads, ATTENTIONS["jaxkernels"])(x, mask)
        return linen.LayerNorm()(x), embed.embedding


def load_tokens() -> jax.Array:
    """The text as pairs of characters, numbers below CLASSES."""
    text = load_text().astype(jnp.int32)
    pairs = text[: text.size // 2 * 2].reshape(-1, 2)
    return pairs[:, 0] * VOCABULARY + pairs[:, 1]


def train(loss: Loss, tokens: jax.Array, form: Form) -> Result:
    """Compiles a training step, asks XLA for its memory, and runs it."""
    model = PairModel(form)
    optimizer = optax.adamw(form.learning_rate)
    window = jnp.arange(form.context + 1)

    def loss_of(params: Any, batch: jax.Array) -> jax.Array:
        x, table = cast(Any, model.apply({"params": params}, batch[:, :-1]))
        return loss(x, table, batch[:, 1:])

    def step(state: State) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(1), state.number)
        starts = jax.random.randint(key, (form.batch, 1), 0, tokens.size - form.context)
        value, gradient = jax.value_and_grad(loss_of)(state.params, tokens[starts + window])
        change, moments = optimizer.update(gradient, state.moments, state.params)
        return State(optax.apply_updates(state.params, change), moments, state.number + 1), value

    example = jnp.zeros((1, form.context), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), example)["params"]
    state = State(params, optimizer.init(params), jnp.array(0))
    compiled = jax.jit(step, donate_argnums=0).lower(state).compile()
    losses = []
    for _ in range(form.steps):
        state, value = compiled(state)
        losses.append(float(value))
    return Result(losses, cast(Any, compiled.memory_analysis()).temp_size_in_bytes)


def main(arguments: Sequence[str] | None = None) -> tuple[Result, Result]:
    """Trains both ways, prints the memory of each, and returns the findings: plain, then lean."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=FORM.steps)
    parser.add_argument("--max-megabytes", type=int, default=20, help="memory bound of the loss")
    options = parser.parse_args(arguments)
    form = FORM._replace(steps=options.steps)
    max_bytes = options.max_megabytes * 2**20

    tokens = load_tokens()
    rows = form.batch * form.context
    print(f"{tokens.size} tokens of {CLASSES} classes; {rows} of them in a step")
    platform = "cuda" if jax.default_backend() == "gpu" else "cpu"
    plan = jk.plan_linear_cross_entropy(
        *(rows, form.features, CLASSES, "float32"), max_bytes=max_bytes, platform=platform
    )
    print(f"{plan}\n")
    results = []
    linear = partial(jk.linear_cross_entropy, trans_w=True, max_bytes=max_bytes)
    losses: dict[str, Loss] = {
        "all logits": lambda x, w, y: jk.cross_entropy(jk.matmul(x, w.T), y, reduction="mean"),
        "chunks": partial(linear, reduction="mean"),
    }
    for name, loss in losses.items():
        result = train(loss, tokens, form)
        results.append(result)
        print(
            f"{name:<10}  loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f}, "
            f"{result.temporary_bytes / 2**20:.0f} MiB beyond arguments and results"
        )
    return results[0], results[1]


if __name__ == "__main__":
    main()
