"""A language model, the cells of recurrent networks, longer attention. Run by scripts/make_golden."""


def attention(q, k, v, causal=False, scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


case("attention", attention, x(1, 2, 70, 8), x(1, 2, 70, 8), x(1, 2, 70, 8), dtypes=("f32",), loose=3, causal=True,
     scale=0.2)
case("attention", attention, x(2, 3, 5, 4, layout="transposed"), x(2, 3, 7, 4, layout="offset"),
     x(2, 3, 7, 6, layout="expanded"), loose=3)


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
