"""llama.cpp as a peer of scripts/compare_generation: the weights in a GGUF file, and greedy texts of several sequences
at once. The keys and names of tensors are those of the `gguf` package; its quantisation is llama.cpp's own."""
import ctypes

import gguf
import llama_cpp
import numpy
import torch

TYPES = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16,
         "int8": gguf.GGMLQuantizationType.Q8_0, "int4": gguf.GGMLQuantizationType.Q4_0}

GPT2 = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm",
        "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
LLAMA = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def name_of(kind, name):
    """llama.cpp's name of a parameter of transformers."""
    if name == "lm_head.weight":
        return "output.weight"
    stem, ending = name.removeprefix("transformer.").removeprefix("model.").rsplit(".", 1)
    block = ""
    if stem.startswith(("h.", "layers.")):
        _, number, stem = stem.split(".", 2)
        block = f"blk.{number}."
    return f"{block}{(GPT2 if kind == 'gpt2' else LLAMA)[stem]}.{ending}"


def write(model, kind, dtype, path):
    """A model of transformers as a GGUF file: matrices in `dtype`, vectors and positions in f32."""
    config = model.config
    heads = config.num_attention_heads
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.hidden_size // heads)
        writer.add_rope_freq_base(10000.0)
    tied = config.tie_word_embeddings
    for name, parameter in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        numbers = parameter.detach().float().numpy()
        if kind == "gpt2" and ".h." in name and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            numbers = numbers.T  # stored [in, out]
        for part, count in (("q_proj", heads), ("k_proj", getattr(config, "num_key_value_heads", heads))):
            if kind == "llama" and f"{part}.weight" in name:  # its rotary embedding turns neighbours, not halves
                numbers = numbers.reshape(count, 2, -1, numbers.shape[1]).swapaxes(1, 2).reshape(numbers.shape)
        numbers = numpy.ascontiguousarray(numbers)
        as_type = TYPES[dtype] if numbers.ndim == 2 and "wpe" not in name else TYPES["f32"]
        writer.add_tensor(name_of(kind, name), gguf.quants.quantize(numbers, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@llama_cpp.llama_log_callback
def silent(_level, _text, _data):
    pass


class Generator:
    """Keys and values are kept in f32 beside weights of f32, else in f16, as llama.cpp does by default."""

    def __init__(self, path, dtype, threads, sequences, tokens):
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise ValueError(f"expected a model that llama.cpp reads, got {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = sequences * tokens
        options.n_batch = options.n_ubatch = max(512, sequences * 16)
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = threads
        if dtype == "f32":
            options.type_k = options.type_v = 0  # GGML_TYPE_F32
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise ValueError(f"expected llama.cpp to make a context of {options.n_ctx} tokens, got none")
        self.words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def step(self, rows, position):
        """The next token of each sequence, behind `rows` [sequences, tokens], the first of which is at `position`."""
        sequences, length = rows.shape
        batch = llama_cpp.llama_batch_init(sequences * length, 0, 1)
        batch.n_tokens = sequences * length
        for i in range(sequences):
            for t in range(length):
                k = i * length + t
                batch.token[k] = int(rows[i, t])
                batch.pos[k] = position + t
                batch.n_seq_id[k] = 1
                batch.seq_id[k][0] = i
                batch.logits[k] = t == length - 1
        if llama_cpp.llama_decode(self.context, batch):
            raise ValueError("expected llama.cpp to decode a step, got an error")
        best = numpy.empty((sequences, 1), numpy.int64)
        for i in range(sequences):
            logits = llama_cpp.llama_get_logits_ith(self.context, i * length + length - 1)
            best[i, 0] = numpy.ctypeslib.as_array(logits, (self.words,)).argmax()
        llama_cpp.llama_batch_free(batch)
        return best

    def generate(self, ids, count):
        """Greedy texts [sequences, count] behind the prompts `ids` [sequences, tokens]."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        tokens = [self.step(ids.numpy(), 0)]
        while len(tokens) < count:
            tokens.append(self.step(tokens[-1], ids.shape[1] + len(tokens) - 1))
        return torch.from_numpy(numpy.concatenate(tokens, 1))
