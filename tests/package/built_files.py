"""What the built files show to others.

usage: built_files.py plugin <plug-in> <its object file> <liblockstep.so or -> <exported name>...
                                                                      exports these, and nothing else of its own
       built_files.py library <shared liblockstep>                            exports public symbols of Lockstep alone
       built_files.py needs <level> <file>...                                 each says that it needs x86-64-<level>
       built_files.py pretend <program> <host> <plug-in>                      on a CPU that lacks what they need, both are refused
       built_files.py pkg_config <lockstep.pc>                                nothing in it that belongs to this machine
"""
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ISA_NEEDED = 0xc0008002  # GNU_PROPERTY_X86_ISA_1_NEEDED
LEVELS = {"baseline": 1, "v2": 2, "v3": 4, "v4": 8}
PUBLIC = re.compile(r"_ZN[RKO]*8lockstep|_ZT[ISVTHW]N8lockstep|_ZT[hv].*_N8lockstep|_ZGVZ?NK?8lockstep|_ZZNK?8lockstep|lockstep_[a-z_]+$")
INTERNAL = re.compile(r"_ZNK?8lockstep7kernels4(cuda|host)")
REFUSED = "CPU ISA level is lower than required"


def symbols(file, *options):
    """Mangled names that the file defines for others, by kind."""
    lines = subprocess.run(["nm", "--defined-only", *options, file], check=True, capture_output=True, text=True).stdout
    fields = (line.split() for line in lines.splitlines())
    return {f[-1]: f[-2] for f in fields if len(f) >= 2 and (f[-2].isupper() or f[-2] in "uvw")}


def static_tls(file):
    """Whether the file asks for thread-local memory that only programs are sure to have."""
    return "STATIC_TLS" in subprocess.run(["readelf", "-dW", file], check=True, capture_output=True, text=True).stdout


def demangled(names):
    return subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True).stdout.splitlines()


def plugin(file, object_file, library_file, *declared):
    exported = symbols(file, "-D")
    missing = [name for name in declared if name not in exported]
    # Templates of the standard library are visible whatever a program's own visibility: what the plug-in's own file makes
    # of them is not Lockstep's doing.
    # So are the types of the shared library, whose tables every file has that uses them: they are the library's own symbols.
    public = symbols(library_file, "-D") if library_file != "-" else {}
    own = {name for name, kind in symbols(object_file).items()
           if kind in "uVvWw" and ("lockstep" not in name or name in public)}
    leaked = [name for name in exported if name not in declared and name not in own]
    return ([f"{file}: cannot be opened late, it needs static TLS"] * static_tls(file) +
            [f"{file}: does not export {name}" for name in missing] +
            [f"{file}: exports {name}" for name in demangled(leaked)])


def library(file):
    exported = symbols(file, "-D")
    wrong = [name for name in exported if not PUBLIC.match(name) or INTERNAL.match(name)]
    breaches = [f"{file}: exports {name}" for name in demangled(wrong)]
    if "_ZN8lockstep7versionEv" not in exported:
        breaches.append(f"{file}: does not export lockstep::version()")
    if static_tls(file):
        breaches.append(f"{file}: cannot be opened late, it needs static TLS")
    return breaches


def needed_at(data):
    """Where the 32 bits are that name the instruction set which the file needs; None without them."""
    begin, = struct.unpack_from("<Q", data, 40)  # section headers of ELF64
    size, count = struct.unpack_from("<HH", data, 58)
    for i in range(count):
        kind, = struct.unpack_from("<I", data, begin + i * size + 4)
        offset, length = struct.unpack_from("<QQ", data, begin + i * size + 24)
        if kind != 7:  # notes
            continue
        at = offset
        while at + 12 <= offset + length:
            name, description, note = struct.unpack_from("<III", data, at)
            at += 12 + (name + 3) // 4 * 4
            end, place = at + description, at
            if note == 5 and data[at - 4:at] == b"GNU\0":  # properties
                while place + 8 <= end:
                    property_kind, property_size = struct.unpack_from("<II", data, place)
                    if property_kind == ISA_NEEDED:
                        return place + 8
                    place += 8 + (property_size + 7) // 8 * 8
            at += (description + 7) // 8 * 8
    return None


def needs(level, *files):
    breaches = []
    for file in files:
        data = pathlib.Path(file).read_bytes()
        at = needed_at(data)
        if at is None or not struct.unpack_from("<I", data, at)[0] & LEVELS[level]:
            breaches.append(f"{file}: does not say that it needs x86-64-{level}")
    return breaches


def pretend(program, host, plug_in):
    """Copies that need a level which no CPU has, as theirs is one that older CPUs lack: the loader's answer. Where there is
    an emulator, the files themselves on a CPU of 2008."""
    breaches = []

    def refused(what, command):
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if result.returncode <= 0 or REFUSED not in result.stdout + result.stderr:
            breaches.append(f"{what}: expected '{REFUSED}', got {result.returncode}: {result.stdout}{result.stderr}")

    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for file in (program, plug_in):
            copies.append(os.path.join(folder, os.path.basename(file)))
            data = bytearray(pathlib.Path(file).read_bytes())
            data[needed_at(data) + 3] |= 0x40
            pathlib.Path(copies[-1]).write_bytes(data)
            os.chmod(copies[-1], 0o755)
        refused("the program", copies[:1])
        refused("the plug-in", [host, copies[1], copies[1]])
    emulator = shutil.which("qemu-x86_64")
    if emulator:
        refused("the program on a Nehalem", [emulator, "-cpu", "Nehalem", program])
        refused("the plug-in on a Nehalem", [emulator, "-cpu", "Nehalem", host, plug_in, plug_in])
    return breaches


def pkg_config(file):
    text = pathlib.Path(file).read_text()
    breaches = []
    if "prefix=${pcfiledir}" not in text:
        breaches.append(f"{file}: prefix is not relative to the file")
    if "-std=" in text:
        breaches.append(f"{file}: chooses the program's language version")
    for path in re.findall(r"(?:^|[\s=]|-L|-I)(/\S+)", text):
        breaches.append(f"{file}: names {path}")
    return breaches


if __name__ == "__main__":
    found = globals()[sys.argv[1]](*sys.argv[2:])
    print("\n".join(found) or "as it should be")
    sys.exit(1 if found else 0)
