"""Attention, transformers and recurrent layers. Run by scripts/make_golden."""
attention = F.scaled_dot_product_attention
for causal in [False, True]:
    case("attention", lambda q, k, v, causal: attention(q, k, v, is_causal=causal), x(2, 3, 7, 4), x(2, 3, 7, 4),
         x(2, 3, 7, 5), dtypes=FLOATING, loose=4, causal=causal)
case("attention", lambda q, k, v, causal, scale: attention(q, k, v, scale=scale), x(2, 2, 4, 6, layout="transposed"),
     x(2, 2, 9, 6, layout="transposed"), x(2, 2, 9, 6, layout="offset"), loose=4, causal=False, scale=0.3)
case("attention", lambda q, k, v, mask, causal: attention(q, k, v, mask), x(2, 2, 3, 4), x(2, 2, 5, 4), x(2, 2, 5, 4),
     values([[True, False, True, True, False], [False] * 5, [True] * 5], grad=False, dtype="bool"), loose=4, causal=False)
case("attention", lambda q, k, v, mask, causal: attention(q, k, v, mask), x(2, 2, 3, 4), x(2, 2, 5, 4), x(2, 2, 5, 4),
     x(2, 1, 3, 5), loose=4, causal=False)


def multihead(size, heads, **options):
    return nn.MultiheadAttention(size, heads, **options)


def attended(m, q, k=None, v=None, padding=None, mask=None):
    return m(q, q if k is None else k, q if v is None else v, padding, need_weights=False, attn_mask=mask)[0]


padded = [[False, False, False, True], [False, True, False, False]]
future = [[j > i for j in range(4)] for i in range(4)]
module("MultiheadAttention", multihead, x(5, 2, 6), call=attended, dtypes=("f32", "f64", "bf16"), loose=8, size=6, heads=3)
module("MultiheadAttention", multihead, x(5, 2, 6), x(4, 2, 3), x(4, 2, 5), call=attended, dtypes=("f32", "f64"), loose=8,
       size=6, heads=2, kdim=3, vdim=5, bias=False)
module("MultiheadAttention_masked", multihead, x(2, 4, 6), values(padded, dtype="bool", grad=False),
       values(future, dtype="bool", grad=False), call=lambda m, a, padding, mask: attended(m, a, None, None, padding, mask),
       dtypes=("f32", "f64"), loose=8, size=6, heads=3, batch_first=True)


def layer(size, heads, feedforward, activation, norm_first):
    return nn.TransformerEncoderLayer(size, heads, feedforward, 0.0, activation, norm_first=norm_first, batch_first=True)


def encoder(layers, **options):
    return nn.TransformerEncoder(layer(**options), layers, nn.LayerNorm(options["size"]), enable_nested_tensor=False)


for norm_first in [False, True]:
    for activation in ["relu", "gelu"]:
        module("TransformerEncoderLayer", layer, x(2, 4, 6), dtypes=("f32", "f64"), loose=16, size=6, heads=2,
               feedforward=8, activation=activation, norm_first=norm_first)
module("TransformerEncoder", encoder, x(2, 4, 6), values(padded, dtype="bool", grad=False),
       values(future, dtype="bool", grad=False), call=lambda m, a, padding, mask: m(a, mask, padding), dtypes=("f32", "f64"),
       loose=24, layers=2, size=6, heads=2, feedforward=8, activation="gelu", norm_first=True)

for op, make, states in [("LSTM", nn.LSTM, 2), ("GRU", nn.GRU, 1)]:
    def flat(m, a, *initial):
        output, last = m(a, initial if len(initial) == 2 else initial[0]) if initial else m(a)
        return [output, *last] if isinstance(last, tuple) else [output, last]

    module(op, lambda make=make, **options: make(**options), x(5, 3, 4), call=flat, dtypes=("f32", "f64", "bf16"), loose=8,
           input_size=4, hidden_size=6)
    module(op, lambda make=make, **options: make(**options), x(3, 5, 4), *[x(4, 3, 6) for _ in range(states)], call=flat,
           dtypes=("f32", "f64"), loose=8, input_size=4, hidden_size=6, num_layers=2, batch_first=True,
           bidirectional=True)
    module(op, lambda make=make, **options: make(**options), x(5, 4), call=flat, dtypes=("f32", "f64"), loose=8,
           input_size=4, hidden_size=6, bias=False)


def with_weights(m, q, k, v, padding, mask, average):
    return m(q, k, v, padding, attn_mask=mask, average_attn_weights=average)


for average in [True, False]:
    module("MultiheadAttention_weights", lambda average, **options: multihead(**options), x(2, 4, 6), x(2, 4, 3), x(2, 4, 5),
           values(padded, dtype="bool", grad=False), x(4, 4, grad=False),
           call=lambda m, *t, average=average: with_weights(m, *t, average), dtypes=("f32", "f64", "bf16"), loose=8, size=6,
           heads=3, kdim=3, vdim=5, batch_first=True, average=average)
    module("MultiheadAttention_weights", lambda average, **options: multihead(**options), x(4, 6), x(4, 6), x(4, 6),
           values(padded[0], dtype="bool", grad=False), values(future, dtype="bool", grad=False),
           call=lambda m, *t, average=average: with_weights(m, *t, average), loose=8, size=6, heads=2, average=average)
