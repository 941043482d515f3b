"""in_ctypes.py <liblockstep.so> <lockstep.h> <folder of a language model>: Python calls the C functions, which are those
of the header, all of them exported."""
import ctypes
import re
import sys

library = ctypes.CDLL(sys.argv[1])
header = re.sub(r"/\*.*?\*/", "", open(sys.argv[2]).read(), flags=re.S)
version = re.search(r"define LOCKSTEP_C_VERSION (\d+)", header)[1]
header = re.sub(r"^#.*", "", header, flags=re.M)
names = re.findall(r"LOCKSTEP_C_API[^;(]*?(\w+)\(", header)
assert len(names) > 25, names
for name in names:
    getattr(library, name)
assert library.lockstep_c_version() == int(version)
library.lockstep_last_error.restype = ctypes.c_char_p


def check(status):
    assert status == 0, (status, library.lockstep_last_error())


def numbers(values):
    return (ctypes.c_int64 * len(values))(*values)


tensor = ctypes.c_void_p()
values = (ctypes.c_float * 4)(1, 2, 3, 4)
check(library.lockstep_tensor_create(0, 2, numbers([2, 2]), values, b"cpu", ctypes.byref(tensor)))
back = (ctypes.c_float * 4)()
check(library.lockstep_tensor_read(tensor, back, ctypes.c_size_t(16)))
assert list(back) == [1, 2, 3, 4]
library.lockstep_tensor_free(tensor)

model = ctypes.c_void_p()
check(library.lockstep_language_model_load(sys.argv[3].encode(), None, None, 0, ctypes.byref(model)))
tokens, count = (ctypes.c_int64 * 5)(), ctypes.c_size_t()
status = library.lockstep_generate(model, numbers([99999]), ctypes.c_size_t(1), None, tokens, ctypes.c_size_t(5),
                                   ctypes.byref(count))
assert status == 2 and b"99999" in library.lockstep_last_error(), (status, library.lockstep_last_error())
check(library.lockstep_generate(model, numbers([5, 6, 7]), ctypes.c_size_t(3), None, tokens, ctypes.c_size_t(5),
                                ctypes.byref(count)))
assert count.value > 5 and all(0 <= token < 99999 for token in tokens), (count.value, list(tokens))
library.lockstep_language_model_free(model)
print(f"in_ctypes.py: {len(names)} functions, tokens {list(tokens)}")
