"""Speeds of Lockstep's kernels beside those of PyTorch and beside the ceilings of the same run."""
import json

# What is bounded by arithmetic, by how its name begins; all else by a copy.
ARITHMETIC = ("matmul", "conv2d", "attention", "causal attention")


def ceiling_of(name):
    if not name.startswith(ARITHMETIC) or "of one query" in name:
        return "copy"
    return "matmul " + next((dtype for dtype in ("bf16", "f16") if dtype in name.replace(",", " ").split()), "f32")


def microseconds_of(row):
    """The time of a row of the benchmark's JSON: a number, or samples with their median."""
    value = row.get("microseconds")
    value = value.get("median") if isinstance(value, dict) else value
    return value if isinstance(value, (int, float)) else None


def objects_in(value):
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from objects_in(part)


def rows_of(text):
    """Names and microseconds that the benchmark printed as JSON; nothing where it printed something else."""
    begin = text.find("{")
    try:
        data, _ = json.JSONDecoder().raw_decode(text[begin:]) if begin >= 0 else (None, 0)
    except ValueError:
        return []
    rows = []
    for entry in objects_in(data):
        time = microseconds_of(entry)
        if isinstance(entry.get("kernel"), str) and time:
            rows.append({"name": entry["kernel"], "microseconds": time})
    return rows


def compare(ours, theirs):
    """One row per kernel: the times, what the ratios are, and the share of the ceiling where the work is known."""
    theirs = theirs or {"rows": [], "ceilings": {}}
    by_name = {row["name"]: row for row in theirs["rows"]}
    rows = []
    for row in ours:
        other, result = by_name.get(row["name"]), {"name": row["name"], "lockstep_us": round(row["microseconds"], 2)}
        if other:
            result["pytorch_us"] = round(other["microseconds"], 2)
            result["times_as_fast"] = round(other["microseconds"] / row["microseconds"], 3)
            if "library_microseconds" in other:
                result["library_us"] = round(other["library_microseconds"], 2)
                result["of_library"] = round(other["library_microseconds"] / row["microseconds"], 3)
            bound = ceiling_of(row["name"])
            if other["work"] is not None and bound in theirs["ceilings"]:
                rate = other["work"] / (row["microseconds"] * 1e-6)
                result["share"], result["of"] = round(rate / theirs["ceilings"][bound], 3), bound
        rows.append(result)
    return rows


def table(rows, theirs):
    """The rows as a page shows them."""
    text = ""
    for name, value in (theirs or {}).get("ceilings", {}).items():
        text += f"ceiling: {name} {value / 1e12:.4g} {'TB/s' if name == 'copy' else 'TFLOP/s'}\n\n"
    text += "The library alone: cuBLAS or cuDNN as PyTorch calls it, in a CUDA graph.\n\n"
    heads = ["kernel", "Lockstep, us", "PyTorch, us", "times as fast", "library alone, us", "times as fast",
             "share of the ceiling"]
    text += f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n"
    for row in rows:
        cells = [row.get(key, "") for key in ("name", "lockstep_us", "pytorch_us", "times_as_fast", "library_us",
                                              "of_library")]
        cells.append(f"{row['share']:.3g} of {row['of']}" if "share" in row else "")
        text += f"| {' | '.join(map(str, cells))} |\n"
    return text
