"""Writes small files that follow and that break the rules of the formats Lockstep reads.

usage: make_corpus.py <folder>       <folder>/{safetensors,npy,tokenizer}/{good,bad,unsupported}/<what>
"""
import json
import pathlib
import shutil
import struct
import sys


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


U2 = tensor("U8", [2], 0, 2)
U2_TEXT = json.dumps(U2)


def safetensors_files():
    sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}
    everything, end = {"__metadata__": {"format": "pt", "naïve": "✓"}}, 0
    for dtype, size in sizes.items():
        everything[f"layer.{dtype}"] = tensor(dtype, [2, 3], end, end + 6 * size)
        end += 6 * size
    everything["empty"] = tensor("F32", [0, 7], end, end)
    good = {
        "nothing": safetensors({}),
        "metadata": safetensors({"__metadata__": {"a": ""}}),
        "one": safetensors({"a": U2}, b"xy"),
        "padded": safetensors(json.dumps({"a": U2}) + "   ", b"xy"),
        "scalar": safetensors({"a": tensor("F64", [], 0, 8)}, bytes(8)),
        "unaligned": safetensors({"b": tensor("U8", [1], 0, 1), "a": tensor("F32", [2], 1, 9)}, bytes(9)),
        "misaligned header": safetensors(json.dumps({"a": tensor("I64", [2], 0, 16)}) + " " * 3, bytes(16)),
        "out of order": safetensors({"b": tensor("U8", [1], 2, 3), "a": U2}, b"xyz"),
        "everything": safetensors(everything, bytes(end)),
        "escapes": safetensors('{"\\u0061\\n\\ud83d\\ude00":' + U2_TEXT + "}", b"xy"),
    }
    one = good["one"]
    bad = {
        "empty": b"",
        "seven bytes": bytes(7),
        "header of no bytes": bytes(8),
        "header length too large": safetensors({"a": U2}, b"xy", 100_000_001),
        "header length of all ones": b"\xff" * 8 + b"{}",
        "header length beyond the file": safetensors({"a": U2}, b"xy", 1000),
        "header length one short": safetensors({"a": U2}, b"xy", len(json.dumps({"a": U2})) - 1),
        "header length one long": safetensors({"a": U2}, b"xy", len(json.dumps({"a": U2})) + 1),
        "data one short": one[:-1],
        "data one long": one + b"z",
        "no data": one[:-2],
        "data without tensors": safetensors({}, b"x"),
        "space first": safetensors(" {}"),
        "byte order mark": safetensors(b"\xef\xbb\xbf{}"),
        "array": safetensors("[]"),
        "null": safetensors("null"),
        "half an object": safetensors('{"a":'),
        "zero bytes as padding": safetensors("{}\0\0"),
        "text after the object": safetensors("{}x"),
        "not UTF-8": safetensors(b'{"\xff":' + U2_TEXT.encode() + b"}", b"xy"),
        "overlong UTF-8": safetensors(b'{"\xc0\x80":' + U2_TEXT.encode() + b"}", b"xy"),
        "encoded surrogate": safetensors(b'{"\xed\xa0\x80":' + U2_TEXT.encode() + b"}", b"xy"),
        "half a surrogate pair": safetensors('{"\\ud800":' + U2_TEXT + "}", b"xy"),
        "control character": safetensors('{"\x01":' + U2_TEXT + "}", b"xy"),
        "trailing comma": safetensors('{"a":' + U2_TEXT + ",}", b"xy"),
        "name twice": safetensors('{"a":' + U2_TEXT + ',"a":' + U2_TEXT + "}", b"xy"),
        "name twice, escaped": safetensors('{"a":' + U2_TEXT + ',"\\u0061":' + U2_TEXT + "}", b"xy"),
        "metadata twice": safetensors('{"__metadata__":{},"__metadata__":{}}'),
        "metadata key twice": safetensors('{"__metadata__":{"a":"","a":""}}'),
        "metadata with a number": safetensors({"__metadata__": {"a": 1}}),
        "metadata with an object": safetensors({"__metadata__": {"a": {}}}),
        "metadata is a list": safetensors({"__metadata__": []}),
        "tensor is a number": safetensors({"a": 1}),
        "tensor is empty": safetensors({"a": {}}),
        "unknown field": safetensors({"a": tensor("U8", [2], 0, 2, strides=[1])}, b"xy"),
        "field twice": safetensors('{"a":{"dtype":"U8",' + U2_TEXT[1:] + "}", b"xy"),
        "unknown dtype": safetensors({"a": tensor("F128", [2], 0, 2)}, b"xy"),
        "dtype in small letters": safetensors({"a": tensor("u8", [2], 0, 2)}, b"xy"),
        "dtype is a number": safetensors({"a": tensor(8, [2], 0, 2)}, b"xy"),
        "shape is a number": safetensors({"a": tensor("U8", 2, 0, 2)}, b"xy"),
        "shape is nested": safetensors({"a": tensor("U8", [[2]], 0, 2)}, b"xy"),
        "size is negative": safetensors({"a": tensor("U8", [-2], 0, 2)}, b"xy"),
        "size is a fraction": safetensors({"a": tensor("U8", [2.0], 0, 2)}, b"xy"),
        "size is true": safetensors({"a": tensor("U8", [True, 2], 0, 2)}, b"xy"),
        "size of 65 bits": safetensors({"a": tensor("U8", [2**64], 0, 2)}, b"xy"),
        "size of 64 bits": safetensors({"a": tensor("U8", [2**64 - 1], 0, 2)}, b"xy"),
        "product overflows": safetensors({"a": tensor("U8", [2**32, 2**32], 0, 0)}),
        "product overflows to the right size": safetensors({"a": tensor("U8", [2**63, 2, 1], 0, 0)}),
        "product overflows beside a zero": safetensors({"a": tensor("U8", [2**62, 8, 0], 0, 0)}),
        "bytes overflow": safetensors({"a": tensor("F64", [2**61], 0, 0)}),
        "one offset": safetensors('{"a":{"dtype":"U8","shape":[2],"data_offsets":[2]}}', b"xy"),
        "three offsets": safetensors('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}}', b"xy"),
        "offsets decrease": safetensors({"a": tensor("U8", [2], 2, 0)}, b"xy"),
        "offset is negative": safetensors({"a": tensor("U8", [2], -2, 0)}, b"xy"),
        "offset of 64 bits": safetensors({"a": tensor("U8", [2], 2**64 - 2, 2**64 - 1)}, b"xy"),
        "offsets wrap around": safetensors({"a": tensor("U8", [2], 2**64 - 1, 1)}, b"xy"),
        "offsets beyond the file": safetensors({"a": tensor("U8", [4], 0, 4)}, b"xy"),
        "fewer bytes than the shape": safetensors({"a": tensor("U8", [3], 0, 2)}, b"xy"),
        "more bytes than the shape": safetensors({"a": tensor("U8", [1], 0, 2)}, b"xy"),
        "bytes of another dtype": safetensors({"a": tensor("F32", [2], 0, 2)}, b"xy"),
        "hole at the start": safetensors({"a": tensor("U8", [2], 1, 3)}, b"xyz"),
        "hole between": safetensors({"a": U2, "b": tensor("U8", [1], 3, 4)}, b"wxyz"),
        "overlap": safetensors({"a": U2, "b": tensor("U8", [2], 1, 3)}, b"xyz"),
        "same bytes twice": safetensors({"a": U2, "b": U2}, b"xy"),
        "empty tensor inside another": safetensors({"a": U2, "b": tensor("U8", [0], 1, 1)}, b"xy"),
        "bool of 2": safetensors({"a": tensor("BOOL", [2], 0, 2)}, b"\1\2"),
        "deep": safetensors('{"a":' * 10000),
        "deep list": safetensors('{"a":' + "[" * 10000),
    }
    unsupported = {
        "I16": safetensors({"a": tensor("I16", [1], 0, 2)}, b"xy"),
        "F8_E4M3": safetensors({"a": tensor("F8_E4M3", [2], 0, 2)}, b"xy"),
        "F8_E5M2FNUZ": safetensors({"a": tensor("F8_E5M2FNUZ", [2], 0, 2)}, b"xy"),
        "U32": safetensors({"a": tensor("U32", [1], 0, 4)}, b"wxyz"),
        "nine dimensions": safetensors({"a": tensor("U8", [2] + [1] * 8, 0, 2)}, b"xy"),
    }
    return good, bad, unsupported


def npy(header, data=b"", version=(1, 0), length=None):
    text = header if isinstance(header, bytes) else header.encode()
    length = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", length) + text + data


def array(descr="|u1", shape="(2,)", order="False", end="\n"):
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}{end}"


def npy_files():
    good = {
        "one": npy(array(), b"xy"),
        "two": npy(array(), b"xy", (2, 0)),
        "three": npy(array(), b"xy", (3, 0)),
        "padded": npy(array(end=" " * 60 + "\n"), b"xy"),
        "scalar": npy(array("<f8", "()"), bytes(8)),
        "matrix": npy(array("<f4", "(2, 3)"), bytes(24)),
        "fortran": npy(array("<i4", "(2, 3)", "True"), bytes(24)),
        "nothing": npy(array("<i8", "(0, 3)"), b""),
        "half": npy(array("<f2", "(1,)"), bytes(2)),
        "bools": npy(array("|b1", "(2,)"), b"\0\1"),
    }
    one = good["one"]
    bad = {
        "empty": b"",
        "other magic": b"\x93NUMPX" + one[6:],
        "zip": b"PK\3\4" + one[4:],
        "version 0": npy(array(), b"xy", (0, 0)),
        "version 4": npy(array(), b"xy", (4, 0)),
        "version 1.1": npy(array(), b"xy", (1, 1)),
        "ends in the length": one[:9],
        "ends in the header": one[:30],
        "header beyond the file": npy(array(), b"xy", (1, 0), 60000),
        "header of 4 GB": npy(array(), b"xy", (2, 0), 2**32 - 1),
        "data one short": one[:-1],
        "data one long": one + b"z",
        "no dict": npy("[1]"),
        "half a dict": npy("{'descr': '|u1'"),
        "code": npy("__import__('os')"),
        "expression": npy(array(shape="(1+1,)"), b"xy"),
        "no shape": npy("{'descr': '|u1', 'fortran_order': False}", b"xy"),
        "key twice": npy("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", b"xy"),
        "another key": npy("{'a': 1, 'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", b"xy"),
        "descr without order": npy(array("u1"), b"xy"),
        "order is a number": npy(array(order="0"), b"xy"),
        "size is negative": npy(array(shape="(-2,)"), b"xy"),
        "size is a fraction": npy(array(shape="(2.0,)"), b"xy"),
        "leading zero": npy(array(shape="(02,)"), b"xy"),
        "shape is a list": npy(array(shape="[2]"), b"xy"),
        "shape is a number": npy(array(shape="2"), b"xy"),
        "size of 64 bits": npy(array(shape=f"({2**63},)"), b"xy"),
        "product overflows": npy(array(shape=f"({2**32}, {2**32})"), b""),
        "product overflows beside a zero": npy(array(shape=f"(0, {2**32}, {2**32})"), b""),
        "bytes overflow": npy(array("<f8", f"({2**61},)"), b""),
        "zero byte in the header": npy(array(end="\0\n"), b"xy"),
        "text after the dict": npy(array(end="x\n"), b"xy"),
        "bool of 2": npy(array("|b1"), b"\1\2"),
    }
    unsupported = {
        "big-endian": npy(array(">f4", "(1,)"), bytes(4)),
        "objects": npy(array("|O", "(1,)"), b"\x80\4N."),
        "structured": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", bytes(4)),
        "unsigned": npy(array("<u4", "(1,)"), bytes(4)),
        "complex": npy(array("<c8", "(1,)"), bytes(8)),
        "text": npy(array("<U3", "(1,)"), bytes(12)),
        "time": npy(array("<M8[ns]", "(1,)"), bytes(8)),
        "nine dimensions": npy(array(shape="(2, 1, 1, 1, 1, 1, 1, 1, 1)"), b"xy"),
    }
    return good, bad, unsupported


def tokenizer_files():
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]

    def added(number, content, **more):
        return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True, **more}

    def tokenizer(vocabulary, merges, model=(), **more):
        # What tells most first: changes are mostly at the beginning.
        return {**more, "model": {**dict(model), "merges": merges, "vocab": {text: i for i, text in enumerate(vocabulary)}}}

    def text(json_of):
        return json.dumps(json_of, ensure_ascii=False).encode()

    bytes_of = tokenizer(["a", "b", "\u0120", "ab", "<s>", "aa"], [["a", "b"], ["a", "a"]], {"ignore_merges": True},
                         pre_tokenizer=level, decoder={"type": "ByteLevel"},
                         added_tokens=[added(4, "<s>"), added(6, "it", lstrip=True, rstrip=True, single_word=True)],
                         post_processor={"type": "TemplateProcessing", "single": pieces, "pair": [],
                                         "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}})
    fallback = tokenizer(["<unk>", "<0xCC>", "<0x81>", "\u2581", "a", "\u2581a"], ["\u2581 a"],
                         {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
                         normalizer={"type": "Sequence", "normalizers": [
                             {"type": "NFC"}, {"type": "Prepend", "prepend": "\u2581"},
                             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
                         decoder={"type": "Sequence", "decoders": [
                             {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                             {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
                         added_tokens=[added(0, "<unk>"), added(6, "a b", normalized=True)])
    marks = tokenizer(["\u2581", "a"], [], pre_tokenizer=mark, decoder=mark)
    good = {"bytes": text(bytes_of), "fallback": text(fallback), "marks": text(marks),
            "nothing": text(tokenizer([], []))}
    bad = {
        "empty": b"",
        "no object": b"[]",
        "no model": b"{}",
        "no UTF-8": text(bytes_of).replace(b"<s>", b"<\xff>"),
        "nesting": b"[" * 300000,
        "one id twice": text(marks).replace(b'"a": 1', b'"a": 0'),
        "large id": text(marks).replace(b'"a": 1', b'"a": 4294967295'),
        "larger id": text(marks).replace(b'"a": 1', b'"a": 18446744073709551616'),
        "negative id": text(marks).replace(b'"a": 1', b'"a": -1'),
        "merge with no result": text(tokenizer(["a", "b"], ["a b"])),
        "merge of what is not there": text(tokenizer(["a"], ["a b"])),
    }
    unsupported = {
        "unigram": text(tokenizer([], [], {"type": "Unigram"})),
        "dropout": text(tokenizer([], [], {"dropout": 0.5})),
        "another pattern": text(tokenizer([], [], pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a*)*b"},
                                                                 "behavior": "Isolated", "invert": False})),
        "nested lists": b'{"model": {"vocab": {}, "merges": [], "dropout": ' + b"[" * 300000 + b"]" * 300000 + b"}}",
    }
    return good, bad, unsupported


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    for name, files in (("safetensors", safetensors_files()), ("npy", npy_files()), ("tokenizer", tokenizer_files())):
        for kind, contents in zip(("good", "bad", "unsupported"), files):
            path = folder / name / kind
            path.mkdir(parents=True)
            for what, content in contents.items():
                (path / what.replace(" ", "_")).write_bytes(content)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
