"""Reads what NVIDIA's tools print of a CUDA object: instructions, registers, stack, shared memory, block sizes."""
import dataclasses
import functools
import re

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?PT?\d*)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*?)\s*;")
LABEL = re.compile(r"^(\.L_x_\d+|\$[\w$]+):")
TARGET = re.compile(r"`\(([^)]+)\)|(\.L_x_\d+)")
REGISTER = re.compile(r"(?<![A-Za-z])R(\d+)(\.64)?\b")
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # bytes; without any of these: 4


@dataclasses.dataclass
class Instruction:
    at: int
    predicate: str  # empty: always
    opcode: str
    operands: str

    @property
    def name(self):
        return self.opcode.split(".")[0]

    @property
    def width(self):
        """Bytes that a load or store moves for one thread."""
        return next((WIDTHS[part] for part in self.opcode.split(".") if part in WIDTHS), 4)

    @property
    def loads(self):
        return self.name in ("LDG", "LD")  # the latter where the compiler does not know that the address is global

    @property
    def stores(self):
        return self.name in ("STG", "ST")

    @property
    def spills(self):
        """nvdisasm marks what the compiler moves to the stack for want of registers; local arrays are not marked."""
        return "SpillRefill" in self.operands

    @property
    def targets(self):
        return [one or other for one, other in TARGET.findall(self.operands)]

    @functools.cached_property
    def writes(self):
        """The registers that a load fills."""
        found = REGISTER.match(self.operands)
        first = int(found.group(1)) if found else 0
        return set(range(first, first + max(1, self.width // 4))) if found else set()

    @functools.cached_property
    def reads(self):
        """The registers that the instruction needs; halves of pairs count as read with their first register."""
        operands = self.operands
        if not self.stores and self.name not in ("BRA", "BRX", "RED", "STS", "STL"):
            first, comma, rest = operands.partition(",")
            operands = rest if REGISTER.match(first) and comma else operands
        pairs = self.name.startswith("D")
        found = set()
        for number, wide in REGISTER.findall(operands):
            found |= {int(number), int(number) + 1} if wide or pairs else {int(number)}
        if self.stores:  # all that it stores
            last = REGISTER.findall(operands)[-1:]
            found |= {int(number) + k for number, _ in last for k in range(max(1, self.width // 4))}
        return found


@dataclasses.dataclass
class Kernel:
    mangled: str
    instructions: list = dataclasses.field(default_factory=list)
    labels: dict = dataclasses.field(default_factory=dict)  # to the number of the instruction that follows
    registers: int = 0
    stack: int = 0
    shared: int = 0  # static
    threads: int = 1024  # of a block at most
    threads_from: str = "no __launch_bounds__"


def disassembly(text):
    """The kernels of what nvdisasm prints, by their mangled names."""
    kernels, kernel, info, attribute = {}, None, None, ""
    for line in text.splitlines():
        section = re.match(r"\s*\.section\s+\.(text|nv\.info)\.([^,\s]+)", line)
        if section:
            named = kernels.setdefault(section.group(2), Kernel(section.group(2)))
            kernel, info = (named, None) if section.group(1) == "text" else (None, named)
        elif re.match(r"\s*\.section\s", line):
            kernel = info = None
        elif "nvinfo :" in line:
            attribute = line.split()[-1]
        elif info and attribute == "EIATTR_MAX_THREADS" and ".word" in line:
            info.threads, info.threads_from, attribute = int(line.split()[-1], 16), "__launch_bounds__", ""
        elif kernel:
            label, found = LABEL.match(line), INSTRUCTION.match(line)
            if label:
                kernel.labels[label.group(1)] = len(kernel.instructions)
            elif found:
                at, predicate, opcode, operands = found.groups()
                kernel.instructions.append(Instruction(int(at, 16), predicate or "", opcode, operands))
    return {name: one for name, one in kernels.items() if one.instructions}


def resources(text, kernels):
    """Adds what cuobjdump -res-usage prints."""
    for name, registers, stack, shared in re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text):
        if name in kernels:
            one = kernels[name]
            one.registers, one.stack, one.shared = int(registers), int(stack), int(shared)


TYPES = {"signed char": "i8", "unsigned char": "u8", "unsigned short": "u16", "unsigned int": "u32",
         "unsigned long": "u64", "float": "f32", "double": "f64", "Half": "f16", "BFloat16": "bf16", "int": "i32",
         "long": "i64"}


def short_name(demangled):
    """Without return type, parameters and namespaces, and with our names of element types."""
    name = demangled.replace("(anonymous namespace)::", "").removeprefix("void ")
    name = re.sub(r"\b(lockstep::)?(kernels::)?(cuda::)?(?=\w)", "", name)
    name = re.sub(r"\((?:\w+::)*\w+\)(\d+)", r"\1", name)  # (Join)0: an enumerator
    if library := re.match(r"cub::(?:\w+::)*(\w+)", name):  # whose namespaces and arguments have its version in them
        return f"cub::{library.group(1)}"
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    name = re.sub(r"\b(signed char|unsigned (?:char|short|int|long)|float|double|Half|BFloat16|int|long)\b",
                  lambda found: TYPES[found.group(1)], name)
    return name.replace(" >", ">").strip()
