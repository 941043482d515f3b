"""Speeds of Lockstep's kernels beside those of PyTorch and beside the ceilings of the same run."""
import json

# Which ceiling bounds a kernel, by what its name says; else a copy.
CEILINGS = {"matmul bf16": "matmul bf16", "matmul f16": "matmul f16", "matmul": "matmul f32", "conv": "matmul f32"}


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
    """One row per kernel: both times, what the ratio is, and the share of the ceiling where the work is known."""
    theirs = theirs or {"rows": [], "ceilings": {}}
    by_name = {row["name"]: row for row in theirs["rows"]}
    rows = []
    for row in ours:
        other, result = by_name.get(row["name"]), {"name": row["name"], "lockstep_us": round(row["microseconds"], 2)}
        if other:
            result["pytorch_us"] = round(other["microseconds"], 2)
            result["times_as_fast"] = round(other["microseconds"] / row["microseconds"], 3)
            bound = next((ceiling for sign, ceiling in CEILINGS.items() if row["name"].startswith(sign)), "copy")
            if bound in theirs["ceilings"]:
                rate = other["work"] / (row["microseconds"] * 1e-6)
                result["share"], result["of"] = round(rate / theirs["ceilings"][bound], 3), bound
        rows.append(result)
    return rows


def table(rows, theirs):
    """The rows as a page shows them."""
    text = ""
    for name, value in (theirs or {}).get("ceilings", {}).items():
        text += f"ceiling: {name} {value / 1e12:.4g} {'TB/s' if name == 'copy' else 'TFLOP/s'}\n\n"
    text += "| kernel | Lockstep, us | PyTorch, us | times as fast | share of the ceiling |\n|---|---|---|---|---|\n"
    for row in rows:
        share = f"{row['share']:.3g} of {row['of']}" if "share" in row else ""
        text += f"| {row['name']} | {row['lockstep_us']} | {row.get('pytorch_us', '')} | " \
                f"{row.get('times_as_fast', '')} | {share} |\n"
    return text
