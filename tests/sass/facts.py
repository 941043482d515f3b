"""What the machine code of a kernel says of its speed, and which of it is asserted."""
import re

from flow import Flow

# Of a multiprocessor of compute capability 9.0: CUDA Programming Guide, "Compute Capabilities".
REGISTERS, WARPS, BLOCKS, SHARED, SHARED_OF_SYSTEM = 65536, 64, 32, 233472, 1024

DIVISIONS = re.compile(r"__cuda_sm\d+_(div|rem)_[su](16|32|64)")
TENSOR_CORES = ("HMMA", "IMMA", "BMMA", "DMMA", "QMMA", "HGMMA", "IGMMA", "BGMMA", "QGMMA")
FMAS = ("FFMA", "DFMA", "HFMA2")


def up(value, unit):
    return (value + unit - 1) // unit * unit


def blocks_per_multiprocessor(registers, threads, shared):
    """As the occupancy calculator has it: registers are given to warps in units of 256, shared memory to blocks in 128
    bytes, besides a kibibyte of the system's."""
    warps = up(threads, 32) // 32
    of_warp = up(max(registers, 1) * 32, 256)
    by_registers = REGISTERS // of_warp // 4 * 4 // warps
    by_shared = SHARED // (up(shared, 128) + SHARED_OF_SYSTEM)
    return max(0, min(BLOCKS, WARPS // warps, by_registers, by_shared))


def histogram(instructions):
    found = {}
    for one in instructions:
        found[one.width] = found.get(one.width, 0) + 1
    return dict(sorted(found.items(), reverse=True))


def divisions(instructions):
    """Calls of division routines, and divisions of 32 bits that stand in the code: a reciprocal of an integer."""
    called = sum(1 for one in instructions if one.name == "CALL" and DIVISIONS.search(one.operands))
    inline = sum(1 for one in instructions if one.name == "I2F" and "RP" in one.opcode.split("."))
    return called, inline


def measure(kernel, shared_dynamic=0):
    """All facts of a kernel. The main loop is the one with most bytes under way, of equals the one with the wider
    loads, of these the smallest; without a loop it is the whole kernel."""
    flow = Flow(kernel)
    every = set(range(len(flow.blocks)))
    ranked = []
    for of, body in flow.loops.items():
        loads, size = flow.under_way(of, body)
        ranked.append((size, -loads, -len(body), of))
    head = max(ranked)[-1] if ranked else 0
    main = flow.loops.get(head, every)
    loads, size = flow.under_way(head, main)
    inside = flow.instructions(main)
    in_loops = flow.instructions(set().union(*flow.loops.values()))
    code = flow.instructions(every)
    shared = max(0, kernel.shared - SHARED_OF_SYSTEM) + shared_dynamic  # cuobjdump counts the system's where any is used
    blocks = blocks_per_multiprocessor(kernel.registers, kernel.threads, shared)
    called, inline = divisions(in_loops)
    calls = sum(1 for one in in_loops if one.name == "CALL")
    return {
        "registers": kernel.registers, "stack": kernel.stack, "spills": sum(1 for one in kernel.instructions if one.spills),
        "shared": shared, "threads": kernel.threads, "threads_from": kernel.threads_from, "blocks": blocks,
        "occupancy": blocks * up(kernel.threads, 32) // 32 / WARPS, "loops": len(flow.loops),
        "loads": histogram(one for one in inside if one.loads),
        "stores": histogram(one for one in in_loops or code if one.stores),
        "loads_in_flight": loads, "bytes_in_flight": size, "in_flight": blocks * kernel.threads * size,
        "divisions": called, "inline_divisions": inline, "calls": calls - called,
        "tensor": sum(1 for one in code if one.name in TENSOR_CORES),
        # HFMA2 of zeros is how a constant comes into a register.
        "fma": sum(1 for one in code if one.name in FMAS and "-RZ, RZ" not in one.operands),
    }


def failures(row, rules):
    """What is not so that the rules of the kernel's class ask for, as {fact: sentence}."""
    found = {}
    if row["spills"]:
        found["spills"] = f"has {row['spills']} instructions that move registers to the stack and back"
    if row["blocks"] == 0:
        found["occupancy"] = "a block does not fit a multiprocessor"
    if row["divisions"]:
        found["divisions"] = f"calls a division routine {row['divisions']} times in loops"
    if rules.get("tensor") and not row["tensor"]:
        found["tensor"] = "has no tensor-core instructions"
    widest = {what: max(row[what], default=0) for what in ("loads", "stores")}
    for what in ("loads", "stores"):
        least = rules.get(what, 0)
        if widest[what] < least:
            found[what] = f"widest {what[:-1]} is {widest[what]} bytes, expected {least}"
    if row["in_flight"] < rules.get("in_flight", 0):
        found["in_flight"] = (f"{row['in_flight'] / 1024:.1f} KiB of loads under way on a multiprocessor, expected "
                              f"{rules['in_flight'] // 1024}")
    return found


def entry_of(name, table):
    return next((entry for entry in table["kernels"] if re.search(entry["name"], name)), None)


def rules_of(name, entry, table):
    """Of the class, for the types that it names, with what the entry says otherwise."""
    rules = table["classes"][entry["class"]]
    types = entry.get("types", rules.get("types"))
    own = {key: value for key, value in entry.items() if key in ("loads", "stores", "in_flight", "tensor")}
    found = rules | own
    if types and not re.search(types, name):
        found = {}
    return found


def judge(rows, table, whole):
    """Sets `class`, `failures` and `known` of every row; returns the sentences that make the report red. `whole`: all
    kernels are there, so that an entry of the table that fits none is red."""
    red = []
    used = set()
    for name, row in rows.items():
        entry = entry_of(name, table)
        row["class"] = entry["class"] if entry else None
        row["failures"] = failures(row, rules_of(name, entry, table) if entry else {})
        row["known"] = []
        if not entry:
            red.append(f"{name}: has no class")
            continue
        used.add(entry["name"])
    for known in table["known"]:
        for name in known["kernels"]:
            row = rows.get(name)
            if row is None:
                if whole:
                    red.append(f"{name}: is a known failure, and no kernel")
            elif known["fact"] in row["failures"]:
                row["known"].append(known["fact"])
            else:
                red.append(f"{name}: {known['fact']} no longer fails: take it from the known failures")
    for name, row in rows.items():
        red += [f"{name}: {sentence}" for fact, sentence in row["failures"].items() if fact not in row["known"]]
    if whole:
        red += [f"{entry['name']}: fits no kernel" for entry in table["kernels"] if entry["name"] not in used]
    return red
