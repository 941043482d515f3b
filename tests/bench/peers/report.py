"""The report of compare_peers: a line for each row, a summary, JSON."""
import json
import os
import platform


def duration(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


HEAD = f"{'work':44} {'ours':>10} {'peer':>10}  {'ratio':>6}   spread"


def line(row):
    if row["peer"] is None:
        return f"{row['work']:44} {duration(row['ours']):>10} {'-':>10}  {'-':>6}   ±{row['spread']:.0%}   (no peer)"
    mark = "   BEHIND" if row["behind"] else ""
    again = f" again {row['repeated']:.2f}" if row.get("repeated") else ""
    return (f"{row['work']:44} {duration(row['ours']):>10} {duration(row['theirs']):>10}  {row['ratio']:6.2f}   "
            f"±{row['spread']:.0%}   {row['peer']}, {row['peer_way']}{again}{mark}")


def machine():
    with open("/proc/cpuinfo") as file:
        names = [text.split(":", 1)[1].strip() for text in file if text.startswith("model name")]
    return {"processor": names[0] if names else platform.processor(), "cores": os.cpu_count()}


def with_shares(rows):
    """Adds to rows bound by memory their speed as a share of that of copying 64 MB, when that was measured too."""
    copy = next((row["bytes_per_second"] for row in rows if row["work"] == "big clone" and "bytes_per_second" in row), None)
    return [row | ({"share_of_copy": row["bytes_per_second"] / copy} if copy and "bytes_per_second" in row else {})
            for row in rows]


def summary(rows, not_compared):
    """Lines for the end: what is behind, and what was not compared."""
    rows = with_shares(rows)
    compared = [row for row in rows if row["peer"]]
    behind = sorted((row for row in compared if row["behind"]), key=lambda row: row["ratio"])
    lines = [f"{len(compared)} rows, {len(behind)} behind"]
    if behind:
        lines += ["", "behind, also when measured again:", HEAD, *map(line, behind)]
    shares = {row["work"]: row["share_of_copy"] for row in rows if "share_of_copy" in row}
    if shares:
        lines += ["", "bytes in a second, each element counted once, as a share of a copy's:"]
        lines += [f"  {name:44} {share:.2f}" for name, share in sorted(shares.items(), key=lambda item: item[1])]
    if not_compared:
        works = {}
        for row in not_compared:
            works.setdefault((row["peer"], row["reason"]), []).append(row["work"])
        lines += ["", "not compared:"]
        for (peer, reason), names in works.items():
            where = f"{len(names)} works, first {names[0]}" if len(names) > 1 else names[0]
            lines.append(f"  {peer}: {reason}" + (f" ({where})" if where else ""))
    return lines


def write(path, about, rows, not_compared):
    """Replaced as a whole, so that a run that is stopped leaves what it has measured."""
    clean = [{key: None if value == float("inf") else value for key, value in row.items()}
             for row in with_shares(rows)]
    text = json.dumps({**about, "rows": clean, "not_compared": not_compared}, indent=1)
    if path == "-":
        print(text)
        return
    with open(f"{path}.part", "w") as file:
        file.write(text + "\n")
    os.replace(f"{path}.part", path)
