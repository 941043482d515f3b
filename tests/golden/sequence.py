"""Attention and recurrent cells, and the layers over them. Run by scripts/make_golden."""
HALF = ("f32", "f64", "bf16")


def attention(q, k, v, mask=None, causal=False, scale=None):
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


case("attention", attention, x(2, 3, 5, 4), x(2, 3, 7, 4), x(2, 3, 7, 6), dtypes=FLOATING, loose=3)
case("attention", attention, x(2, 3, 6, 4), x(2, 3, 6, 4), x(2, 3, 6, 4), dtypes=FLOATING, loose=3, causal=True)
case("attention", attention, x(1, 2, 70, 8), x(1, 2, 70, 8), x(1, 2, 70, 8), dtypes=("f32",), loose=3, causal=True,
     scale=0.2)
case("attention", attention, x(2, 3, 5, 4, layout="transposed"), x(2, 3, 7, 4, layout="offset"),
     x(2, 3, 7, 6, layout="expanded"), loose=3)
case("attention_masked", attention, x(2, 3, 5, 4), x(2, 3, 7, 4), x(2, 3, 7, 4), x(5, 7, grad=False), dtypes=FLOATING,
     loose=3)
case("attention_masked", attention, x(2, 3, 5, 4), x(2, 3, 7, 4), x(2, 3, 7, 4),
     values([[[[True] * 4 + [False] * 3]], [[[True] * 6 + [False]]]], dtype="bool", grad=False), loose=3)


def lstm_cell(gates, c):
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(a, b, h):
    (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
    z = (az + bz).sigmoid()
    return (1 - z) * (an + (ar + br).sigmoid() * bn).tanh() + z * h


case("lstm_cell", lstm_cell, x(3, 20), x(3, 5), dtypes=FLOATING, loose=2)
case("gru_cell", gru_cell, x(3, 15), x(3, 15), x(3, 5), dtypes=FLOATING, loose=2)


def states(module, *tensors):
    output, state = module(*tensors)
    return (output, *state) if isinstance(state, tuple) else (output, state)


for name, make in [("LSTM", nn.LSTM), ("GRU", nn.GRU)]:
    for options in [dict(), dict(num_layers=2, bidirectional=True), dict(batch_first=True, bias=False),
                    dict(num_layers=3, batch_first=True)]:
        def made(input_size, hidden_size, num_layers=1, bidirectional=False, batch_first=False, bias=True, make=make):
            return make(input_size, hidden_size, num_layers, bias=bias, batch_first=batch_first,
                        bidirectional=bidirectional)
        module(name, made, x(4, 3, 5), dtypes=("f32", "f64"), loose=3, call=states, input_size=5, hidden_size=6, **options)
module("LSTM", lambda input_size, hidden_size: nn.LSTM(input_size, hidden_size), x(4, 3, 5), dtypes=HALF, loose=3,
       call=states, input_size=5, hidden_size=6)


def attend(module, query, key=None, value=None):
    return module(query, query if key is None else key, query if value is None else value, need_weights=False)[0]


module("MultiheadAttention", lambda size, heads, batch_first: nn.MultiheadAttention(size, heads, batch_first=batch_first),
       x(5, 3, 8), dtypes=HALF, loose=3, call=attend, size=8, heads=2, batch_first=False)
module("MultiheadAttention", lambda size, heads, batch_first: nn.MultiheadAttention(size, heads, batch_first=batch_first),
       x(3, 5, 8), x(3, 7, 8), x(3, 7, 8), loose=3, call=attend, size=8, heads=4, batch_first=True)
for activation in ["relu", "gelu"]:
    for norm_first in [False, True]:
        module("TransformerEncoderLayer", lambda size, heads, feedforward, activation, norm_first:
               nn.TransformerEncoderLayer(size, heads, feedforward, 0.0, activation, batch_first=True,
                                          norm_first=norm_first),
               x(3, 5, 8), dtypes=HALF, loose=5, size=8, heads=2, feedforward=16, activation=activation,
               norm_first=norm_first)


class Gpt(nn.Module):
    """A language model of causal transformer layers, whose head is the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    def forward(self, tokens):
        a = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return F.linear(self.encoder(a, mask, is_causal=True), self.tokens.weight)


module("Gpt", Gpt, ints(3, 6, high=11), loose=5)
torch.manual_seed(1)
model = Gpt().eval()
with torch.no_grad():  # layers that are not copies of one another
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
save_file(model.state_dict(), FOLDER / "model_gpt.safetensors")
case("file_gpt", model, ints(2, 6, high=11), dtypes=("f32",), gradients=False)
