"""Measures one work by turns, and says what came of it."""
import statistics

from programs import Lost

SLOWER = 1.5  # ways that take so many times the best of their program in the first round are left out of the others
BEHIND = 0.95


def percentile(values, percent):
    """Between two values on a line, as NumPy's default is."""
    values = sorted(values)
    at = (len(values) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def spread(values):
    """Half the distance from the 5th to the 95th percentile, as a part of the median."""
    return (percentile(values, 95) - percentile(values, 5)) / 2 / statistics.median(values)


class Comparison:
    """One work on Lockstep and on its peers. `failures`: why a program, or a way of it, is not compared."""

    def __init__(self, work, ours, peers, folder):
        self.work, self.programs, self.failures, self.reports = work, [], {}, {}
        if self.add(ours, folder):
            for peer in peers:
                self.add(peer, folder)

    def add(self, program, folder):
        try:
            answer = program.prepare(self.work, folder)
        except Lost as lost:
            answer = {"error": str(lost)}
        if "ways" not in answer:
            self.failures[program.name] = answer.get("unsupported") or answer["error"]
            return False
        right = {}
        for way, report in answer["ways"].items():
            for other, reason in report.get("missing", {}).items():
                self.failures[f"{program.name}, {other}"] = reason
            off = report.get("difference", 0)
            if off <= self.work["tolerance"]:
                right[way] = report
            else:  # also where it is not a number
                self.failures[f"{program.name}, {way}"] = (
                    f"results differ by {off:.1e}, at most {self.work['tolerance']:.0e} are expected")
        if right:
            self.programs.append(program)
            self.reports[program.name] = right
        return bool(right)

    def measure(self, rounds, least):
        """{program: {way: [seconds of a call, by round]}}."""
        times = {program.name: {way: [] for way in self.reports[program.name]} for program in self.programs}
        for turn in range(rounds):
            first = turn % len(self.programs)
            for program in self.programs[first:] + self.programs[:first]:
                mine = times.get(program.name)
                if mine is None:
                    continue
                try:
                    for way in mine:
                        mine[way].append(program.measure(way, least))
                except Lost as lost:
                    self.failures[program.name] = str(lost)
                    del times[program.name]
                    continue
                if turn == 0:
                    best = min(values[0] for values in mine.values())
                    for way in [way for way, values in mine.items() if values[0] > SLOWER * best]:
                        del mine[way]
        return times

    def rows(self, rounds, least):
        """A row for each peer. What is behind is measured once more: it is behind when it is so both times."""
        rows = self.compared(self.measure(rounds, least))
        if any(row["ratio"] < BEHIND for row in rows):
            again = {row["peer"]: row["ratio"] for row in self.compared(self.measure(rounds, least))}
            for row in rows:
                row["repeated"] = again.get(row["peer"])
        bytes_moved = next(iter(self.reports["lockstep"].values())).get("bytes")
        for row in rows:
            if bytes_moved and self.work["group"] == "big":
                row["bytes_per_second"] = bytes_moved / row["ours"]
            row["behind"] = row["ratio"] < BEHIND and (row.get("repeated") or 0) < BEHIND
        return rows

    def compared(self, times):
        ours = times.pop("lockstep", None)
        if ours is None:
            return []
        way, mine = min(ours.items(), key=lambda item: statistics.median(item[1]))
        rows = []
        for program in self.programs[1:]:
            if program.name not in times:
                continue
            its, theirs = min(times[program.name].items(), key=lambda item: statistics.median(item[1]))
            rows.append({"work": self.work["name"], "ours": statistics.median(mine), "peer": program.name,
                         "peer_version": program.version, "theirs": statistics.median(theirs),
                         "ratio": statistics.median(theirs) / statistics.median(mine),
                         "spread": spread([b / a for a, b in zip(mine, theirs)]), "our_way": way, "peer_way": its,
                         "difference": self.reports[program.name][its].get("difference")})
        if not rows:
            rows.append({"work": self.work["name"], "ours": statistics.median(mine), "our_way": way, "peer": None,
                         "peer_version": None, "ratio": float("inf"), "spread": spread(mine)})
        return rows
