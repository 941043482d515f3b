"""Sequences of different lengths, and the recurrent layer without gates. Run by scripts/make_golden."""
rnn = nn.utils.rnn


def pack_and_pad(a, lengths, batch_first, enforce_sorted, padding_value, total_length=None):
    packed = rnn.pack_padded_sequence(a, torch.tensor(lengths), batch_first, enforce_sorted)
    padded, again = rnn.pad_packed_sequence(packed, batch_first, padding_value, total_length)
    return [packed.data, padded, again, packed.batch_sizes]


case("pack_and_pad", pack_and_pad, x(5, 3, 2), dtypes=FLOATING, lengths=[5, 4, 1], batch_first=False, enforce_sorted=True,
     padding_value=0.0)
case("pack_and_pad", pack_and_pad, x(4, 6, 3, 2, layout="transposed"), dtypes=FLOATING, lengths=[2, 5, 1, 3],
     batch_first=True, enforce_sorted=False, padding_value=-1.5, total_length=7)
case("pack_and_pad", pack_and_pad, x(4, 3, layout="offset"), lengths=[4, 4, 4], batch_first=False, enforce_sorted=True,
     padding_value=2.0)
case("pack_and_pad", pack_and_pad, ints(4, 3), dtypes=("f32",), lengths=[1, 3, 2], batch_first=False,
     enforce_sorted=False, padding_value=-7)


def pad_list(*sequences, batch_first, padding_value):
    return rnn.pad_sequence(sequences, batch_first, padding_value)


def pack_list(*sequences):
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)
    return [packed.data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices]


for batch_first in [False, True]:
    case("pad_list", pad_list, x(3, 2), x(5, 2), x(1, 2), dtypes=FLOATING, batch_first=batch_first, padding_value=0.25)
case("pack_list", pack_list, x(3, 2), x(5, 2), x(1, 2), x(4, 2), dtypes=FLOATING)

for nonlinearity in ["tanh", "relu"]:
    def flat(m, a, *initial):
        return list(m(a, *initial))

    module("RNN", nn.RNN, x(5, 3, 4), call=flat, dtypes=("f32", "f64", "bf16"), loose=8, input_size=4, hidden_size=6,
           nonlinearity=nonlinearity)
    module("RNN", nn.RNN, x(3, 5, 4), x(4, 3, 6), call=flat, dtypes=("f32", "f64"), loose=8, input_size=4,
           hidden_size=6, nonlinearity=nonlinearity, num_layers=2, batch_first=True, bidirectional=True)
    module("RNN", nn.RNN, x(5, 4), call=flat, dtypes=("f32", "f64"), loose=8, input_size=4, hidden_size=6,
           nonlinearity=nonlinearity, bias=False)

for op, make, states in [("RNN", nn.RNN, 1), ("LSTM", nn.LSTM, 2), ("GRU", nn.GRU, 1)]:
    def layer(make=make, lengths=None, **options):
        return make(**options)

    def through(m, a, *initial, lengths):
        packed = rnn.pack_padded_sequence(a, torch.tensor(lengths), m.batch_first, enforce_sorted=False)
        output, last = m(packed, initial if len(initial) == 2 else initial[0]) if initial else m(packed)
        padded = rnn.pad_packed_sequence(output, m.batch_first)[0]
        return [padded, *last] if isinstance(last, tuple) else [padded, last]

    for lengths in [[5, 3, 1], [2, 5, 3]]:
        module(f"packed_{op}", layer, x(5, 3, 4), call=lambda m, *t, lengths=lengths: through(m, *t, lengths=lengths),
               dtypes=("f32", "f64", "bf16", "f16"), loose=8, input_size=4, hidden_size=6, lengths=lengths)
    module(f"packed_{op}", layer, x(4, 6, 4), *[x(4, 4, 6) for _ in range(states)],
           call=lambda m, *t: through(m, *t, lengths=[1, 4, 6, 2]), dtypes=("f32", "f64"), loose=8, input_size=4,
           hidden_size=6, num_layers=2, batch_first=True, bidirectional=True, lengths=[1, 4, 6, 2])
