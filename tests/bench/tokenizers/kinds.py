"""Small tokenizers of the kinds that are published, trained with PyPI's tokenizers: each gives the JSON of its file."""
import json
import random

import texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def corpus():
    choose = random.Random(1)
    words = [word for sentence in texts.SENTENCES for word in sentence.split(" ")]
    lines = texts.SENTENCES * 3
    lines += [" ".join(choose.choice(words) for _ in range(12)) for _ in range(300)]
    return lines


def special(content, **flags):
    return AddedToken(content, **{"normalized": False, "special": True, **flags})


def train(tokenizer, merges, lines=None, **options):
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), **options}
    trainer = trainers.BpeTrainer(vocab_size=len(options["initial_alphabet"]) + len(options.get("special_tokens", [])) + merges,
                                  show_progress=False, min_frequency=1, **options)
    tokenizer.train_from_iterator(lines or corpus(), trainer)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(merges, lines=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, merges, lines)
    tokenizer.add_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    return json.loads(tokenizer.to_str())


def gpt2_legacy(merges):
    """As the published file is: merges as strings, no type. And with a space before each text."""
    file = gpt2(merges)
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    for key in ("type", "byte_fallback", "ignore_merges"):
        del file["model"][key]
    file["pre_tokenizer"]["add_prefix_space"] = True
    return file


def gpt2_holes(merges):
    """Bytes that no token stands for, and some merges of tokens that are there taken away."""
    file = gpt2(merges)
    vocabulary = file["model"]["vocab"]
    used = {part for pair in file["model"]["merges"] for part in pair}
    for token in ["Ā", "!", "ÿ", "¡", "Ħ", "@"]:
        if token not in used:
            del vocabulary[token]
    file["added_tokens"] = []
    for token in ["<|endoftext|>"]:
        vocabulary.pop(token, None)
    return file


def flags(merges):
    """Added tokens of every kind."""
    tokenizer = Tokenizer.from_str(json.dumps(gpt2(merges)))
    tokenizer.add_tokens([
        special("<left>", lstrip=True), special("<right>", rstrip=True), special("<both>", lstrip=True, rstrip=True),
        special("<word>", single_word=True), AddedToken("word", single_word=True, normalized=False),
        AddedToken("plain", normalized=False), AddedToken("plainer", normalized=False), AddedToken("Würde", normalized=True),
        AddedToken("  ", normalized=False), AddedToken("é", normalized=False), AddedToken("x", single_word=True, lstrip=True),
        special("<|end"), special("<|end|>", normalized=True)])
    return json.loads(tokenizer.to_str())


def llama3(merges, lines=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split(LLAMA3)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, merges, lines)
    first = tokenizer.get_vocab_size()
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_tokens([special(name) for name in names])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", first)])])
    file = json.loads(tokenizer.to_str())
    if lines is None:  # tokens that no merges make
        choose = random.Random(2)
        needed = {part for pair in file["model"]["merges"] for part in pair}
        file["model"]["merges"] = [pair for pair in file["model"]["merges"]
                                   if "".join(pair) in needed or choose.random() < 0.5]
    return file


def qwen2(merges, lines=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split(QWEN2)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, merges, lines)
    tokenizer.add_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
                          AddedToken("<tool_call>", normalized=False), AddedToken("e\u0301te\u0301", normalized=True)])
    return json.loads(tokenizer.to_str())


def llama2(merges, lines=None, cut=True, alphabet=256, fuse=True):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if cut:  # as SentencePiece learns: no token has a space behind another character
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if byte % 256 < alphabet]
    train(tokenizer, merges, lines, special_tokens=names, initial_alphabet=list("▁abcdefghijklmnopqrstuvwxyz"), limit_alphabet=150)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                             special_tokens=[("<s>", 1)])
    file = json.loads(tokenizer.to_str())
    file["pre_tokenizer"] = None
    file["added_tokens"] = file["added_tokens"][:3]
    return file


def llama2_whole(merges):
    """Tokens that reach over spaces; some bytes are missing, and unknown characters stay apart."""
    file = llama2(merges, cut=False, alphabet=200, fuse=False)
    for token in file["added_tokens"]:  # as in older files
        token["normalized"] = token["content"] != "</s>"
    return file


def llama2_fused(merges):
    """Bytes are missing: runs of unknown characters are one token."""
    return llama2(merges, alphabet=100)


def metaspace(merges, scheme="first", cut=False):
    file = llama2(merges)
    mark = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
    file["normalizer"] = None
    file["pre_tokenizer"] = mark
    file["decoder"] = {"type": "Sequence", "decoders": [mark, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    file["post_processor"]["single"].append({"SpecialToken": {"id": "</s>", "type_id": 0}})
    file["post_processor"]["special_tokens"]["</s>"] = {"id": "</s>", "ids": [2], "tokens": ["</s>"]}
    return file


def metaspace_always(merges):
    file = metaspace(merges, "always", True)
    file["decoder"] = None
    return file


def metaspace_never(merges):
    return metaspace(merges, "never", True)


KINDS = [gpt2, gpt2_legacy, gpt2_holes, flags, llama3, qwen2, llama2, llama2_whole, llama2_fused, metaspace, metaspace_always,
         metaspace_never]
PUBLISHED = [gpt2, llama3, qwen2, llama2]
