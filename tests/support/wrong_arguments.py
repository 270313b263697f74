"""Wrong arguments of every function, with the class of their error and a pattern that its text matches.

`WRONG` has for each function a call whose arguments are right, and the changes that make them wrong.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

X = jnp.ones((4, 8))
HALF = X.astype(jnp.bfloat16)
FLOAT8 = jnp.ones((2, 3), "float8_e4m3fn")
ZEROS = np.zeros(4, int)
SCORES = jnp.ones((3, 4, 8))
SEEN = np.ones((4, 8), bool)
TRIANGLE = np.tril(np.ones((3, 3), bool))
HEADS = np.ones((2, 3, 5, 4), np.float32)
LONG_HEADS = np.ones((2, 3, 7, 4), np.float32)
SQUARE = np.ones((1, 3, 1, 3), np.float32)
LOGITS = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
LABEL = np.random.default_rng(1).integers(0, 7, (3, 5))
OF_COLUMNS = {"logits": LOGITS[0].T, "labels": 1, "axis": 0}
LOW = jnp.zeros(5, int)
BEYOND = jnp.array([0, 1, 8, 1])
SHAPE = (4096, 1024)
BATCH = np.ones((3, 3, 3, 4), np.float32)
OPERANDS = ("query", "key", "value")
SEVEN_KEYS = np.zeros((2, 7, 2, 4), np.float32)
GROUPED = {"query": np.zeros((2, 5, 6, 4), np.float32), "key": SEVEN_KEYS, "value": SEVEN_KEYS}
LAYERS = np.zeros((2, 5, 4, 8), np.float32)
H200 = {"device": "h200"}
PLANNED = {"query_shape": (4, 9, 2, 64), "key_shape": (4, 9, 2, 64), "dtype": "float32"}
DOT = {"lhs": X.T, "rhs": X, "dimension_numbers": (((1,), (0,)), ((), ()))}
FLOAT64 = jax.lax.DotAlgorithmPreset.F64_F64_F64


def call(function, *, x64=False, **arguments):
    with jax.enable_x64(x64):
        return function(**arguments)


def transformed(f, **arguments):
    return jk.float32_matmuls(f)(**arguments)


IMPLEMENTATIONS = (
    ({"implementation": "cuda"}, ValueError, "implementation must be .*'ffi', 'xla'.*'cuda'"),
)
TIERS = (
    *IMPLEMENTATIONS,
    ({"tier": "smem"}, ValueError, "tier must be .*'warp', 'block', 'block_smem', .*'smem'"),
    ({"implementation": "xla", "tier": "warp"}, ValueError, "has no tiers.*'warp'"),
)
ROWS = (
    *TIERS,
    ({"axis": 2}, ValueError, "axis 2.*dimension 2"),
    ({"axis": -3}, ValueError, "axis -3.*dimension 2"),
    ({"axis": (0, -2)}, ValueError, r"duplicate.*\(0, -2\)"),
    ({"axis": 0.5}, TypeError, r"0\.5"),
    ({"axis": (0, 1.0)}, TypeError, r"1\.0"),
    ({"axis": (0, "1")}, NameError, "1"),
    ({"where": X}, ValueError, "boolean.*float32"),
    ({"where": SEEN[:3]}, ValueError, r"\(3, 8\).*\(4, 8\)"),
    ({"where": "mask"}, TypeError, "mask"),
    ({"x": [1.0, 2.0]}, TypeError, "list"),
    ({"x": X > 0}, TypeError, r"softmax: x must be numbers; got bool\. Write x\.astype\(jnp\.fl"),
    ({"x": X * 1j, "implementation": "ffi"}, NotImplementedError, "implementation=.ffi.*complex64"),
    ({"x": FLOAT8, "tier": "warp"}, NotImplementedError, "tier='warp'.*float8_e4m3fn"),
)
LOG_SUM_EXP = (
    *TIERS,
    ({"a": X * 1j, "implementation": "ffi"}, NotImplementedError, "ffi.*complex64"),
    ({"b": X, "tier": "warp"}, NotImplementedError, "warp.*factors"),
)
RMS_NORM = (
    *TIERS,
    ({"axis": 2}, ValueError, "axis 2.*dimension 2"),
    ({"axis": (0, 1)}, TypeError, r"axis must be an integer; got \(0, 1\)"),
    ({"axis": 0.5}, TypeError, r"0\.5"),
    ({"x": X > 0}, TypeError, "x must be real numbers; got bool"),
    ({"x": X * 1j}, TypeError, "x must be real numbers; got complex64"),
    ({"x": "text"}, TypeError, "str"),
    ({"x": FLOAT8, "tier": "warp"}, NotImplementedError, "tier='warp'.*float8_e4m3fn"),
    ({"scale": SEEN[0]}, TypeError, "scale must be real numbers; got bool"),
    ({"scale": [1.0] * 8}, TypeError, "scale must be an array.*list"),
    ({"scale": X}, ValueError, r"scale must have the shape \(8,\).*\(4, 8\)"),
    ({"axis": 0}, ValueError, r"\(4,\) of the normalised axis; got \(8,\)"),
    ({"epsilon": -1e-6}, ValueError, "epsilon must be at least 0; got -1e-06"),
    ({"epsilon": float("nan")}, ValueError, "epsilon.*nan"),
    ({"epsilon": "small"}, TypeError, "epsilon must be a number; got 'small'"),
    ({"scale_offset": None}, TypeError, "scale_offset must be a number; got None"),
    ({"scale": None, "scale_offset": 1.0}, ValueError, r"needs a scale; got scale_offset=1\.0"),
)
MASKED = (
    *TIERS,
    ({"mask": SEEN.astype(np.int32)}, ValueError, "mask.*bool.*int32"),
    ({"mask": "all"}, TypeError, "mask.*'all'"),
    ({"mask": SEEN[:3]}, ValueError, r"mask.*\(3, 8\).*\(3, 4, 8\)"),
    ({"bias": SCORES[:, :, :3]}, ValueError, r"bias.*\(3, 4, 3\).*\(3, 4, 8\)"),
    ({"bias": [1.0]}, TypeError, "bias.*list"),
    ({"bias": SCORES * 1j}, TypeError, "bias.*complex64"),
    ({"bias": SEEN}, TypeError, "bias.*bool.*mask="),
    ({"mask": 0.125}, ValueError, r"Write mask != 0\. A factor of scores is scale=$"),
    ({"bias": 0.125}, ValueError, "bias must be .* a number, .* A factor of the scores is scale=$"),
    ({"mask": SEEN[:3, :4]}, ValueError, r"of scores: write mask\[:, :, None\]"),
    ({"bias": SCORES[:, 0, 0]}, ValueError, "bias has shape .* of scores: write bias"),
    ({"scale": jnp.ones(3)}, ValueError, r"scale.*\(3,\)"),
    ({"scale": 1j}, TypeError, "scale.*real.*complex64"),
    ({"scale": "half"}, TypeError, "scale.*'half'"),
    ({"window": (1, 2, 3)}, TypeError, r"window.*\(1, 2, 3\)"),
    ({"window": (1, "2")}, TypeError, r"window.*'2'"),
    ({"window": (2, -3)}, ValueError, r"window.*-3"),
    ({"causal": TRIANGLE}, ValueError, r"^causal must be True .* \(3, 3\)\. .* mask=$"),
    ({"empty_rows": "nan"}, ValueError, "'zero' or 'mean'.*'nan'"),
    ({"scores": [[1.0]]}, TypeError, "scores.*list"),
    ({"scores": X[0]}, ValueError, r"scores.*\(\.\.\., q, k\).*\(8,\)"),
    ({"scores": X.astype(int)}, TypeError, "scores.*float32.*int32"),
    ({"scores": X > 0}, TypeError, r"got bool\. Write scores\.astype\(jnp\.float32\)$"),
    ({"scores": FLOAT8}, TypeError, "scores.*float8_e4m3fn"),
)
# Arguments of both losses.
LOSSES = (
    ({"reduction": "average"}, ValueError, "reduction.*'mean'.*'average'"),
    ({"label_smoothing": 1.5}, ValueError, r"label_smoothing.*1\.5"),
    ({"label_smoothing": None}, TypeError, "label_smoothing.*None"),
    ({"label_smoothing": jnp.ones(2)}, ValueError, r"label_smoothing must be a number.*\(2,\)"),
    ({"z_loss": jnp.ones(5)}, ValueError, r"z_loss.*number.*\(5,\)"),
    ({"logit_soft_cap": jnp.ones(5)}, ValueError, r"logit_soft_cap.*number.*\(5,\)"),
    ({"logit_soft_cap": 0}, ValueError, "logit_soft_cap must be positive"),
    ({"temperature": jnp.arange(5.0)}, ValueError, "temperature must be positive"),
    ({"temperature": np.ones(4)}, ValueError, r"temperature has shape \(4,\).*\(3, 5\)"),
    ({"weights": LOW}, ValueError, r"weights has shape \(5,\), .* \(3, 5\): write weights\[None\]"),
    ({"labels": LOW}, ValueError, r"labels has shape \(5,\), .* \(3, 5\): write labels\[None\]"),
    ({"labels": LABEL[:2]}, ValueError, r"labels has shape \(2, 5\)"),
    ({"labels": LABEL + 6}, ValueError, "labels must be smaller than 7, the number of classes"),
    ({"labels": LABEL > 2}, TypeError, "labels must be integers.*; got bool"),
)
CROSS_ENTROPY = (
    *LOSSES,
    *TIERS,
    ({"axis": 3}, ValueError, "axis 3.*dimension 3"),
    ({"axis": (0, 1)}, TypeError, r"axis must be an integer; got \(0, 1\)"),
    ({"where": jnp.ones(7)}, ValueError, "where must be .*boolean"),
    ({"where": jnp.ones(6, bool)}, ValueError, r"where.*\(6,\)"),
    ({"where": np.ones((5, 7), bool)}, ValueError, r"where has shape \(5, 7\).*where\[None\]"),
    ({"labels": np.ones((5, 7)) / 7}, ValueError, r"labels has shape \(5, 7\).*labels\[None\]"),
    ({"labels": "three"}, TypeError, "labels must be an array"),
    ({"labels": np.array([[0, 1, 1 << 40, 1, 1]] * 3)}, ValueError, "smaller than 7"),
    ({"labels": 7}, ValueError, "smaller than 7"),
    ({"logits": LOGITS > 0}, TypeError, r"real numbers; got bool\. Write logits\.astype\(jnp\.fl"),
    ({"logits": 3, "labels": X[0]}, ValueError, "classes; got a number. The order is .*"),
    ({**OF_COLUMNS, "where": SEEN[0, :7]}, ValueError, r"\(7,\).*where\[:, None\]"),
)
# Arguments of both losses for logits of shape (4, 8). The error says what was given, and what to write instead.
OF_A_MATRIX = (
    ({"labels": np.zeros(4, "f")}, TypeError, r"labels are float32 .* labels\.astype"),
    ({"labels": np.eye(4, 8, dtype=int)}, ValueError, r"are int32 .* write labels\.argmax\(-1\)$"),
    ({"logits": X.T, "labels": X.T > 1, "axis": 0}, TypeError, r"bool .* labels\.argmax\(0\)$"),
    ({"labels": ZEROS[:, None]}, ValueError, r"\(4, 1\), .*labels\.squeeze\(-1\)$"),
    ({"labels": BEYOND}, ValueError, "labels must be smaller than 8"),
    ({"where": SEEN[:, 0]}, ValueError, r"where hides classes. .* give them a negative label$"),
    ({"weights": np.ones(8)}, ValueError, r"For a weight of each class write weights\[labels\]$"),
    ({"logits": ZEROS, "labels": X}, ValueError, r"labels are float32 .*\. The logits come first$"),
)
LOG_PROBS = (
    *TIERS,
    ({"ids": np.zeros(4, "f")}, TypeError, r"token_log_probs: ids are float32 .*astype"),
    ({"logits": X[0], "ids": 1.0}, TypeError, r"ids\.astype\(jnp\.int32\)$"),
    ({"ids": BEYOND}, ValueError, "token_log_probs: .* smaller than 8"),
    ({"ids": np.eye(4, 8, dtype="f")}, TypeError, r"For one-hot ids write ids\.argmax\(-1\)$"),
    ({"ids": np.zeros((3, 2), int)}, ValueError, r"\(3, 2\), 2 ids of each row .* \(4, 2\): sizes"),
    ({"logits": ZEROS, "ids": X}, ValueError, "come first$"),
    ({"temperature": np.zeros(4)}, ValueError, "temperature must be positive"),
)
KL = (
    *IMPLEMENTATIONS,
    ({"reduction": "average"}, ValueError, "reduction.*'mean'.*'average'"),
    ({"target_logits": X[0]}, ValueError, r"must have the shape of logits, \(4, 8\); got \(8,\)$"),
    ({"target_logits": X > 0}, TypeError, r"Write target_logits\.astype\(jnp\.float32\)$"),
    ({"target_logits": "two"}, TypeError, "target_logits must be an array"),
    ({"logits": 1.0, "target_logits": 1.0}, ValueError, r"order is .*\(logits, target_logits\)$"),
    ({"where": SEEN[:, 0]}, ValueError, r"where hides classes. .* give them the weight 0$"),
    ({"temperature": np.zeros(4)}, ValueError, "temperature must be positive"),
    ({"weights": np.ones((2, 1))}, ValueError, r"weights has shape \(2, 1\)"),
)
BYTES = "max_bytes must be None or an integer, a number of bytes; got "
LINEAR = (
    *IMPLEMENTATIONS,
    *LOSSES,
    ({"w": jnp.ones((9, 7))}, ValueError, r"\(H, V\); got .* \(9, 7\)\. Write trans_w=True$"),
    ({"trans_w": True, "w": jnp.ones((7, 9))}, ValueError, r"\(V, H\) with trans_w; got"),
    ({"w": np.eye(7)[None]}, ValueError, r"w\.shape \(H, V\); got"),
    ({"dtype": "int8"}, TypeError, "linear_cross_entropy: dtype must be one of .* got int8"),
    ({"x": np.float32(1)}, ValueError, r"x\.shape must be \(\.\.\., H\)"),
    ({"x": np.ones(3, "f"), "w": 1.0, "labels": 0}, ValueError, r"x\.shape must be \(\.\.\., H\)"),
    ({"x": LOGITS.astype(int)}, TypeError, "dtypes of float32.*got int32 and float32"),
    ({"x": "text"}, TypeError, "x must be an array or a number"),
    ({"w": LABEL, "labels": np.eye(7, dtype="f")}, TypeError, r"order is .*\(x, w, labels\)$"),
    ({"labels": np.ones((3, 5, 7))}, TypeError, r"jaxkernels\.cross_entropy"),
    ({"labels": np.zeros((3, 5), "f")}, TypeError, r"write labels\.astype\(jnp\.int32\)$"),
    ({"labels": LOGITS.astype(int)}, ValueError, r"one-hot labels write labels\.argmax\(-1\)$"),
    *(
        (
            {"x": w, "w": np.ones((1, 4, 7)), "labels": ZEROS[None], "trans_w": trans_w},
            *(ValueError, r"fit w, \(1, 4, 7\), and not x, .* order is .*\(x, w, labels\)$"),
        )
        for w, trans_w in ((np.ones((7, 9), "f"), False), (np.ones((9, 7), "f"), True))
    ),
    ({"bias": np.ones(6)}, ValueError, r"bias must have shape \(7,\)"),
    ({"where": np.ones(6, bool)}, ValueError, r"where must have shape \(7,\)"),
    ({"where": np.ones(7)}, ValueError, r"where must be None or a boolean array"),
    ({"bias": LABEL[0]}, TypeError, "bias must be floating; got int"),
    ({"logits_dtype": "float64"}, ValueError, "must be None or 'float32'; got 'float64'$"),
    ({"max_bytes": "1GB"}, TypeError, BYTES + r"'1GB'.*2\*\*30"),
    ({"max_bytes": 1000}, ValueError, "max_bytes=1000 is too little"),
)
LINEAR_LOG_PROBS = (
    *IMPLEMENTATIONS,
    ({"ids": np.zeros((3, 5), "f")}, TypeError, r"probs: ids are float32 .*astype"),
    ({"ids": np.ones((3, 5, 1), "f")}, TypeError, "ids must be integers; got float32. Write ids"),
    ({"ids": 7}, ValueError, "linear_token_log_probs: ids must be smaller than 7"),
    ({"ids": np.ones((3, 5, 2), int)}, ValueError, r"write token_log_probs\(x @ w, ids\)$"),
    ({"w": np.ones((9, 7), "f")}, ValueError, r"linear_token_log_probs: .*Write trans_w=True$"),
    ({"where": np.ones((5, 7), bool)}, ValueError, r"where must have shape \(7,\); got \(5, 7\)"),
)
NARROW = {"preferred_element_type": jnp.bfloat16}
RUNGS = (
    *IMPLEMENTATIONS,
    ({"algorithm": "fastest"}, ValueError, "algorithm must be None or one of 'naive'"),
    ({"implementation": "xla", "algorithm": "naive"}, ValueError, "no algorithms; got .*'naive'"),
)
PRODUCTS = (
    *RUNGS,
    (NARROW, TypeError, r"None or float32; .* float32, and write \.astype\(jnp\.bfloat16\)"),
    ({"preferred_element_type": ["float32"]}, (TypeError, ValueError), ""),
    ({"precision": "sloppy"}, (TypeError, ValueError), "sloppy"),
    ({"precision": FLOAT64}, ValueError, r"computed in float32.*Drop .*, or .*jnp\.matmul$"),
    ({"other_dtypes": "float64"}, ValueError, "other_dtypes must be None or 'xla'"),
)
MATMUL = (
    *PRODUCTS,
    ({"a": X}, TypeError, r"\(8,\) and \(4,\)"),
    ({"a": X[0, 0]}, ValueError, "ndim"),
    ({"a": [[1.0]]}, TypeError, "a must be an array"),
    ({"a": jax.random.split(jax.random.key(0), (8, 4))}, (TypeError, ValueError), ""),
    ({"a": HALF.T}, TypeError, r"float32; got bfloat16 and float32\. Pass preferred_elem.*xla"),
    ({"a": X.T.astype(int)}, TypeError, r"int32.*Write a\.astype\(jnp\.float32\), or .*xla"),
    ({"a": HALF.T, "other_dtypes": "xla", "algorithm": "pipelined"}, TypeError, "must be float32"),
    ({"a": HALF.T, "other_dtypes": "xla", "implementation": "ffi"}, TypeError, "must be float32"),
)
DOT_GENERAL = (
    *PRODUCTS,
    ({"precision": [[]]}, (TypeError, ValueError), ""),
    ({"lhs": X}, TypeError, "contracting dimensions"),
    ({"dimension_numbers": (((7,), (0,)), ((), ()))}, (TypeError, ValueError), ""),
    ({"lhs": HALF.T, "rhs": HALF}, TypeError, 'must be float32.*bfloat16.*other_dtypes="xla"'),
    ({"rhs": X * 1j}, TypeError, 'got float32 and complex64. Pass other_dtypes="xla" for XLA'),
)
SGEMM = (
    *RUNGS,
    ({"a": X}, ValueError, r"differ: a \(4, 8\) with trans_a=False, b \(4, 8\)"),
    ({"trans_a": True}, ValueError, r"differ: a \(8, 4\) with trans_a=True"),
    ({"a": X[0]}, ValueError, r"a must be a matrix; got shape \(8,\)"),
    ({"a": jnp.ones((2, 8, 4)), "b": jnp.ones((3, 4, 8))}, ValueError, "do not broadcast: a .* b"),
    ({"c": X, "beta": 1.0}, ValueError, r"c has shape \(4, 8\), but op.* has .*\(8, 8\)"),
    ({"c": X[0], "beta": 1.0}, ValueError, "c has shape|equal ranks"),
    ({"c": [1.0], "beta": 1.0}, TypeError, "c must be"),
    ({"beta": 2.0}, ValueError, r"beta=2\.0 needs a c"),
    ({"beta": jnp.float32(0)}, ValueError, "needs a c"),
    ({"trans_a": 3}, ValueError, "trans_a must be 0, 1 or 2, or a bool; got 3"),
    ({"trans_a": [1]}, (TypeError, ValueError), "trans_a"),
    ({"trans_b": "T"}, ValueError, "trans_b must be 0, 1 or 2, or a bool; got 'T'"),
    ({"b": HALF}, TypeError, r"sgemm: b must be .* got bfloat16. Write b\.astype\(jnp\.float32\)"),
    ({"c": HALF, "beta": 1.0}, TypeError, r"must be float32.*bfloat16.*jnp\.float32"),
    ({"a": X.T * 1j}, TypeError, r"a must be float32; .* For complex products use jnp\.matmul$"),
    *(
        ({"c": jnp.ones((8, 8)), name: number}, error, f"sgemm: {name} must {text}")
        for name in ("alpha", "beta")
        for number, error, text in (
            *((x, TypeError, "be a real number; got") for x in ("2", 1j, np.str_("2"))),
            (jnp.complex64(1), TypeError, "be a real number; got"),
            (np.ones(1), ValueError, r"have no dimensions; got shape \("),
        )
    ),
)
ATTENTION = (
    ({"scale": "1"}, TypeError, "scale"),
    ({"is_causal": TRIANGLE}, ValueError, r"^is_causal must be .* \(3, 3\)\. .* mask=$"),
)
HEADS_MASKS = (
    ({"mask": np.ones((1, 1, 2, 2))}, ValueError, r"got float\d\d\. Write mask != 0\. .* bias=$"),
    ({"mask": SEEN[:2, :3]}, ValueError, r"write mask\[:, None, None, :\] for \(batch, keys\)$"),
    ({"mask": np.ones((5, 5), bool)}, ValueError, r"\(batch, heads, .* query.swapaxes\(-3, -2\)"),
    (dict.fromkeys(("key", "value"), LONG_HEADS), ValueError, r"5 and 7\. .* query.swapaxes\(-3"),
)
ANY_BATCH = (
    (
        {"mask": TRIANGLE},
        ValueError,
        r"^dot_product_attention: mask has shape \(3, 3\), whose first dimension may be the batch: write "
        r"mask\[:, None, None, :\] for \(batch, keys\), or mask\[None, None, :, :\] for \(queries, keys\)$",
    ),
)
SIX = GROUPED["query"]
# Arguments for which jax.nn raises an error of the same class.
OF_JAX_NN = (
    ({"query": SIX[..., :3]}, ValueError, r"\(2, 5, 6, 3\)"),
    ({"query": SIX[:1]}, ValueError, r"\(1, 5, 6, 4\)"),
    ({"query": SIX[None]}, ValueError, r"\(1, 2, 5, 6, 4\)"),
    ({"query": SIX[:, :, :5]}, ValueError, "multiple.*5 and 2"),
    ({"query": SIX.astype(np.float16)}, ValueError, "float16"),
    ({"value": SEVEN_KEYS[:, :6]}, ValueError, r"\(2, 6, 2, 4\)"),
    ({"mask": np.ones((5, 7), np.float32)}, ValueError, "bool.*float32"),
    ({"bias": np.ones((1, 2, 6, 5, 7))}, ValueError, "bias"),
    ({"query_seq_lengths": np.ones(3, np.int32)}, ValueError, r"\(3,\)"),
    ({"key_value_seq_lengths": np.ones(2, np.float32)}, ValueError, "float32"),
)
GROUPED_HEADS = (
    *OF_JAX_NN,
    ({"implementation": "tpu"}, ValueError, "'ffi', 'xla', 'cudnn', 'ffi_flash'.*'tpu'"),
    ({"empty_rows": "nan"}, ValueError, "'zero', 'mean'.*'nan'"),
    ({"empty_rows": "zero", "implementation": "xla"}, ValueError, "'zero'"),
    ({"empty_rows": "mean", "implementation": "cudnn"}, ValueError, "'mean'"),
    ({"local_window_size": (-1, 0)}, ValueError, "-1"),
    ({"local_window_size": 1.5}, TypeError, "1.5"),
    ({"bias": "text"}, TypeError, "bias.*str"),
    ({"key": SEVEN_KEYS[:, :, :0], "value": SEVEN_KEYS[:, :, :0]}, ValueError, "6 and 0"),
)
HOOKS = dict.fromkeys(("qk_attn_weights_einsum", "attn_weights_value_einsum"), jnp.einsum)
FLAX = (
    *ATTENTION[1:],
    ({"key": LAYERS[:, :, :3], "value": LAYERS[:, :, :3]}, ValueError, "multiple.*4 and 3"),
    ({"key": LAYERS[:1]}, ValueError, "batch"),
    ({"key": LAYERS[..., :3]}, ValueError, "depth"),
    ({"value": LAYERS[:, :2]}, ValueError, "length"),
    ({"value": LAYERS[0]}, ValueError, "rank"),
    ({"mask": np.ones((3, 1, 5, 5))}, ValueError, r"mask.*\(3, 1, 5, 5\)"),
    ({"bias": np.ones((1, 2, 4, 5, 5))}, ValueError, "bias"),
    ({"dropout_rate": 0.5}, ValueError, "dropout_rng"),
    ({"module": "layer"}, TypeError, "module.*str"),
    *(({name: jnp.einsum}, ValueError, "together") for name in HOOKS),
    ({**HOOKS, "precision": "highest"}, ValueError, "exclude"),
    (
        {**HOOKS, **dict.fromkeys(OPERANDS[1:], LAYERS[:, :, :2])},
        ValueError,
        "one key head for each query head",
    ),
    ({"empty_rows": None}, ValueError, "None"),
    ({"implementation": "cudnn"}, ValueError, "cudnn"),
    ({"window": -1}, ValueError, "-1"),
    ({"dtype": jnp.complex64}, TypeError, "complex64"),
)
IDS, SHARES = jk.optax.softmax_cross_entropy_with_integer_labels, jk.optax.softmax_cross_entropy
OF_IDS = (
    ({"labels": np.eye(4, 8)}, TypeError, "For probabilities use softmax_cross_entropy$"),
    ({"axis": 3}, ValueError, "axis 3 is out of bounds"),
    ({"logits": LOGITS, "labels": LOW}, ValueError, r".* \(3, 5\): write labels\[None\]"),
)
OF_SHARES = (
    ({"labels": ZEROS}, TypeError, "For classes use softmax_cross_entropy_with_integer_labels$"),
    ({"logits": ZEROS}, TypeError, "logits must be floating numbers; got int32"),
    ({"logits": LOGITS, "labels": LOGITS, "where": LOW == 0}, ValueError, r"write where\[None\]"),
)
PLAN_ROWS = (
    ({"shape": 5}, TypeError, r"shape must be a sequence of integers; got 5; write \(5,\)"),
    ({"shape": (2.0, 3)}, TypeError, r"shape must be a sequence of integers; got \(2\.0, 3\)$"),
    ({"shape": (-1, 3)}, ValueError, "-1"),
    ({"shape": (2, 1 << 40)}, ValueError, "packs"),
    ({"dtype": "fp32"}, TypeError, "dtype must be one of float32, bfloat16, float16, float64; got"),
    ({"dtype": "int32"}, TypeError, "int32"),
    ({"operation": "softmax"}, ValueError, "operation.*softmax_fwd.*'softmax'"),
    ({"device": "h2o"}, ValueError, "device.*h200.*'h2o'"),
    ({"device": 132}, TypeError, "132"),
    ({"device": "T4"}, ValueError, "'T4' has compute capability 7.5, and kernels need 8.0"),
    ({"tier": "smem"}, ValueError, "tier.*'smem'"),
    ({"shape": (2, 1 << 20), "tier": "block_smem"}, ValueError, "shared.*h200.*Leave tier= out"),
)
PLAN_SGEMM = (
    ({"a_shape": 4, "b_shape": 4}, TypeError, "a_shape must be a sequence of integers"),
    ({"a_shape": 4.0, "b_shape": 4, "k": 4}, TypeError, r"sizes .* got \(4\.0, 4, 4\)"),
    ({"a_shape": 1, "b_shape": -1, "k": 1}, ValueError, "negative"),
    ({"b_shape": (6, 7)}, ValueError, r"contracted .*\(4, 5\).*\(6, 7\)"),
    ({"a_shape": (4,)}, ValueError, "ranks of at least 2"),
    ({"batch": 2}, ValueError, "batch needs sizes"),
    ({"algorithm": "fast"}, ValueError, "algorithm must be None or one of"),
    ({"device": "tpu"}, ValueError, "device must be one of"),
    ({"a_shape": 2**22, "b_shape": 2**22, "k": 1, "algorithm": "naive"}, ValueError, "a GPU takes"),
)
SHAPES = {"x_shape": (4, 8), "w_shape": (8, 9), "dtype": "float32", "of_dtype": None}
SIZES = {"x_shape": 1000, "w_shape": 8, "dtype": 100, "of_dtype": "float32"}
PLAN_LINEAR = (
    ({**SHAPES, "w_shape": (6, 7)}, ValueError, r"w_shape \(H, V\); got \(4, 8\) and \(6, 7\)"),
    ({**SHAPES, "trans_w": True}, ValueError, r"\(V, H\) .* and \(8, 9\)\. Write trans_w=False$"),
    ({"x_shape": 0}, ValueError, "sizes must be positive; got rows=0"),
    ({"of_dtype": "int32"}, TypeError, "dtype must be one of"),
    ({"of_dtype": None}, TypeError, "dtype must be one of .*; got None"),
    ({"platform": "tpu"}, ValueError, "platform must be"),
    ({"max_bytes": 10_000}, ValueError, "max_bytes=10000 is too little"),
    ({"max_bytes": 1e9}, TypeError, BYTES + r"1000000000\.0"),
)
LAYER = {"x": LOGITS, "w": np.eye(7, dtype="f"), "labels": LABEL}
WIDE_LAYER = {"x": np.eye(4), "w": np.eye(4), "labels": ZEROS}
IN_64 = {"x64": True}
NARROWED = ({"logits_dtype": "float32"}, ValueError, "than x, float64. Drop logits_dtype=$")
WIDE_A = ({"a": np.ones((2, 2))}, TypeError, r"a\.astype\(jnp\.float32\) and b\.astype\(jnp\.")
WIDE_B = ({"b": np.ones((8, 2))}, TypeError, r"float64. Write b\.astype\(.*, or use jnp\.matmul$")
FLOAT32_MATMULS = (
    ({"f": X}, TypeError, "^float32_matmuls: f must be a function; got ArrayImpl$"),
    ({"a": [X, {1}]}, TypeError, r"argument a\[1\] of type set is static and must be hashable$"),
    ({"algorithm": slice([])}, TypeError, "argument algorithm of type slice is static"),
)
PLAN_ATTENTION = (
    ({"query_shape": 4}, TypeError, "query_shape must be a sequence of integers; got 4"),
    ({"dtype": "int32"}, TypeError, "int32"),
    (dict.fromkeys(("query_shape", "key_shape"), (2048, 64)), ValueError, "3 or 4"),
    ({"query_shape": (4, 9, 15, 64)}, ValueError, "15 and 2"),
    ({"query_shape": (4, 9, 2, 32)}, ValueError, "one batch size and depth"),
    ({"device": "abacus"}, ValueError, "abacus"),
    ({"empty_rows": "nan"}, ValueError, "nan"),
    ({"local_window_size": -1}, ValueError, "-1"),
    ({"local_window_size": (None, 0), "is_causal": True}, TypeError, "window"),
)
# A function, right arguments, and changes of these with the error and its text.
WRONG = {
    "softmax": (jk.softmax, {"x": X}, ROWS),
    "log_softmax": (jk.log_softmax, {"x": X}, ROWS),
    "logsumexp": (jk.logsumexp, {"a": X, "axis": -1}, LOG_SUM_EXP),
    "rms_norm": (jk.rms_norm, {"x": X, "scale": X[0]}, RMS_NORM),
    "scaled_masked_softmax": (jk.scaled_masked_softmax, {"scores": SCORES}, MASKED),
    "cross_entropy": (jk.cross_entropy, {"logits": LOGITS, "labels": LABEL}, CROSS_ENTROPY),
    "cross_entropy-2": (jk.cross_entropy, {"logits": X, "labels": ZEROS}, OF_A_MATRIX),
    "token_log_probs": (jk.token_log_probs, {"logits": X, "ids": ZEROS}, LOG_PROBS),
    "softmax_kl_divergence": (jk.softmax_kl_divergence, {"logits": X, "target_logits": X}, KL),
    "linear_cross_entropy": (jk.linear_cross_entropy, LAYER, LINEAR),
    "linear_token_log_probs": (
        jk.linear_token_log_probs,
        {"x": LOGITS, "w": np.eye(7, dtype="f"), "ids": LABEL},
        LINEAR_LOG_PROBS,
    ),
    "linear-64": (jk.linear_cross_entropy, IN_64 | WIDE_LAYER, (NARROWED,)),
    "matmul": (jk.matmul, {"a": X.T, "b": X}, MATMUL),
    "matmul-64": (jk.matmul, IN_64 | {"b": np.ones((2, 2))}, (WIDE_A,)),
    "dot_general": (jk.dot_general, DOT, DOT_GENERAL),
    "sgemm": (jk.sgemm, {"a": X.T, "b": X}, SGEMM),
    "sgemm-64": (jk.sgemm, IN_64 | {"a": X}, (WIDE_B,)),
    "float32_matmuls": (transformed, {"f": jk.matmul, "a": X.T, "b": X}, FLOAT32_MATMULS),
    "attention": (jk.dot_product_attention, dict.fromkeys(OPERANDS, SQUARE), ATTENTION),
    "attention-heads": (jk.dot_product_attention, dict.fromkeys(OPERANDS, HEADS), HEADS_MASKS),
    "attention-batch": (jk.dot_product_attention, dict.fromkeys(OPERANDS, BATCH), ANY_BATCH),
    "attention-grouped": (jk.dot_product_attention, GROUPED, GROUPED_HEADS),
    "flax": (jk.flax.dot_product_attention, dict.fromkeys(OPERANDS, LAYERS), FLAX),
    "optax-ids": (IDS, {"logits": X, "labels": ZEROS}, OF_IDS),
    "optax-probabilities": (SHARES, {"logits": X, "labels": X}, OF_SHARES),
    "plan_softmax": (jk.plan_softmax, {"shape": SHAPE, "dtype": "float32", **H200}, PLAN_ROWS),
    "plan_sgemm": (jk.plan_sgemm, {"a_shape": (4, 5), "b_shape": (5, 7), **H200}, PLAN_SGEMM),
    "plan_linear_cross_entropy": (jk.plan_linear_cross_entropy, SIZES, PLAN_LINEAR),
    "plan_attention": (jk.plan_attention, PLANNED, PLAN_ATTENTION),
}
WRONG_CALLS = [
    pytest.param(
        functools.partial(call, function, **{**right, **changes}),
        *(error, text),
        id=f"{name}-{number}-{'-'.join(changes)}",
    )
    for name, (function, right, wrong) in WRONG.items()
    for number, (changes, error, text) in enumerate(wrong)
]
