"""The record of what was run: a page, the same as JSON, JUnit's XML, and whole logs. Rewritten after each step, so that
whatever ends the run leaves what was measured."""
import gzip
import json
import os
import pathlib
import re
import xml.etree.ElementTree as xml

from gpu.run import middle_left_out

MOST_LOG = 15 << 20          # bytes of the compressed log
MOST_LOG_STEP = 4 << 20      # characters of one program's output in it
MOST_SHOWN = 200             # failed cases whose output the page and the JSON hold; the log has the rest
RESULTS = ["fail", "not run", "skipped", "pass"]


def counts_of(rows):
    """Results of all cases of some rows; a row without cases counts itself."""
    counts = dict.fromkeys(RESULTS, 0)
    for row in rows:
        for case in row.get("cases") or [row]:
            counts[case["result"]] += 1
    return counts


def result_of(cases):
    """Of a row from its cases."""
    worst_first = ["fail", "not run", "pass", "skipped"]  # some are skipped wherever there are few devices
    return next((result for result in worst_first if any(case["result"] == result for case in cases)), "not run")


def words_of_counts(counts):
    return ", ".join(f"{number} {result}" for result, number in counts.items() if number) or "nothing"


class Record:
    def __init__(self, folder, gpu, date, phases, say):
        self.folder, self.say, self.phases = pathlib.Path(folder), say, phases
        name = re.sub(r"[^a-z0-9]+", "-", gpu["name"].lower()).strip("-") + "-" + date
        self.stem = self.folder / name
        self.data = {"format": 2, "date": date, "gpu": gpu, "state": "interrupted", "phases": {}}
        self.unwritten = ""  # why the record could not be written

    def path(self, suffix):
        return self.stem.with_name(self.stem.name + suffix)

    def take_earlier(self, commit):
        """Keeps the phases of an earlier run on the same day and commit; begins the log anew otherwise."""
        try:
            earlier = json.loads(self.path(".json").read_text(encoding="utf-8"))
            if earlier.get("commit") == commit and earlier.get("format") == 2:
                self.data["phases"] = earlier["phases"]
                return
        except (OSError, ValueError, KeyError):
            pass
        try:
            self.path(".log.gz").unlink(missing_ok=True)
        except OSError as error:
            self.failed_to_write(error)

    def begin(self, phase):
        self.data["phases"][phase] = []
        self.data["at_work"] = phase

    def add(self, phase, row):
        self.data["phases"].setdefault(phase, []).append(row)

    def log(self, what, text):
        """Adds to the log: a file of gzip members, whole at any time."""
        path = self.path(".log.gz")
        try:
            member = gzip.compress(f"==== {what}\n{middle_left_out(text, MOST_LOG_STEP).rstrip()}\n\n".encode())
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size + len(member) > MOST_LOG:
                self.data["log_left_out"] = self.data.get("log_left_out", 0) + 1
                return
            with open(path, "ab") as file:
                at = file.tell()
                try:
                    file.write(member)
                    file.flush()
                except OSError:
                    os.truncate(path, at)  # half a member would hide what comes after it
                    raise
        except OSError as error:
            self.failed_to_write(error)

    def failed_to_write(self, error):
        if not self.unwritten:
            self.unwritten = f"{self.folder}: {error.strerror}"
            self.say(f"gpu_check: the record cannot be written ({self.unwritten}): it is printed at the end")

    def write(self):
        """Replaces the files as a whole: half a file never stands there."""
        texts = {".json": json.dumps(self.data, indent=1) + "\n", ".md": self.page(), ".junit.xml": self.junit()}
        for suffix, text in texts.items():
            path, half = self.path(suffix), self.path(suffix + ".half")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                half.write_text(text, encoding="utf-8")
                half.replace(path)
            except OSError as error:
                self.failed_to_write(error)
                try:
                    half.unlink(missing_ok=True)
                except OSError:
                    pass
                return
        self.unwritten = ""

    def finish(self, state):
        self.data["state"] = state
        if state == "complete":
            self.data.pop("at_work", None)
        self.write()

    def rows(self):
        return [(phase, row) for phase in self.phases for row in self.data["phases"].get(phase, [])]

    def counts(self):
        return counts_of([row for _, row in self.rows()])

    def failed(self):
        """(phase, row, case) of all that failed; the row itself where it has no cases."""
        return [(phase, row, case) for phase, row in self.rows() for case in row.get("cases") or [row]
                if case["result"] == "fail"]

    def drop_long_outputs(self):
        """Only so many failures keep their output: the log has all of it."""
        for _, _, case in self.failed()[MOST_SHOWN:]:
            case.pop("output", None)

    def page(self):
        data, gpu = self.data, self.data["gpu"]
        programs = data.get("programs", {})
        facts = [("GPU", f"{gpu['count']} x {gpu['name']} (compute capability {gpu['compute_capability']})"),
                 ("driver", gpu["driver"]), ("commit", data.get("commit")), ("date", data["date"]),
                 ("programs", programs.get("words")), ("time", data.get("time"))]
        for name, entry in data.get("libraries", {}).items():
            found = f"{entry['path']} {entry.get('version', '')}".strip()
            facts.append((name, found if entry["path"] else f"**{entry['why']}**"))
        facts += [(name, path or "**not found**") for name, path in data.get("tools", {}).items()]
        facts += [(name, value) for name, value in data.get("machine", {}).items()]
        text = f"# {gpu['name']}, {data['date']}\n\nWritten by `scripts/gpu_check`. "
        if data["state"] != "complete":
            where = f" in {data['at_work']}" if "at_work" in data else ""
            text += f"**The run was interrupted{where}**: what stands here is what was finished before.\n\n"
        counts = self.counts()
        text += f"Cases: {words_of_counts(counts)}.\n\n"
        text += self.failures()
        text += "## Machine\n\n| | |\n|---|---|\n"
        text += "".join(f"| {name} | {value} |\n" for name, value in facts if value)
        for phase in self.phases:
            text += f"\n## {phase}\n\n"
            rows = data["phases"].get(phase)
            if not rows:
                text += "**not run**\n"
                continue
            text += "| what | result | seconds | |\n|---|---|---|---|\n"
            for row in rows:
                result = row["result"] if row["result"] == "pass" else f"**{row['result']}**"
                detail = words_of_counts(counts_of([row])) if "cases" in row else ""
                detail = "; ".join(part for part in [one_line(row.get("detail", "")), detail] if part)
                text += f"| {row['name']} | {result} | {row.get('seconds', '')} | {detail} |\n"
            text += self.left_over(rows)
            for row in rows:
                if row.get("shown"):
                    text += f"\n{row['name']}:\n\n{row['shown'].rstrip()}\n"
        return text

    def failures(self):
        failed = self.failed()
        if not failed:
            return ""
        text = "## Failed\n\n| phase | what | case | how |\n|---|---|---|---|\n"
        for phase, row, case in failed:
            name = case["name"] if case is not row else ""
            text += f"| {phase} | {row['name']} | {name} | {one_line(case.get('detail', ''))} |\n"
        for phase, row, case in failed[:MOST_SHOWN]:
            if case.get("output"):
                text += f"\n{phase}, {row['name']}: {case['name']}\n\n```\n{fenced(case['output'])}\n```\n"
        if len(failed) > MOST_SHOWN:
            text += f"\nThe output of {len(failed) - MOST_SHOWN} more is in the log.\n"
        return text + "\n"

    @staticmethod
    def left_over(rows):
        """Cases that were not run or skipped, and what nobody could verify."""
        text, lines = "", []
        for row in rows:
            why = {}
            for case in row.get("cases", []):
                if case["result"] in ("not run", "skipped"):
                    why.setdefault((case["result"], one_line(case.get("detail", ""))), []).append(case["name"])
                lines += [f"{row['name']}: {case['name']}: {one_line(said)}" for said in case.get("notes", [])]
            for (result, detail), names in why.items():
                some = "; ".join(names[:5]) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")
                lines.append(f"{row['name']}: {len(names)} {result} ({detail}): {some}")
        for line in lines:
            text += f"- {line}\n"
        return "\n" + text if text else ""

    def junit(self):
        suites = xml.Element("testsuites")
        for phase, row in self.rows():
            cases = row.get("cases") or [row]
            suite = xml.SubElement(suites, "testsuite", name=f"{phase}: {row['name']}", tests=str(len(cases)),
                                   failures=str(sum(case["result"] == "fail" for case in cases)),
                                   skipped=str(sum(case["result"] in ("skipped", "not run") for case in cases)))
            for case in cases:
                one = xml.SubElement(suite, "testcase", classname=f"{phase}.{row['name']}", name=case["name"],
                                     time=str(case.get("seconds", 0)))
                if case["result"] == "fail":
                    xml.SubElement(one, "failure", message=printable(case.get("detail", ""))).text = \
                        printable(case.get("output", ""))
                elif case["result"] != "pass":
                    xml.SubElement(one, "skipped", message=printable(case.get("detail", "")))
        return xml.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def one_line(text):
    return " ".join(printable(text).split()).replace("|", "\\|")[:300]


def fenced(text):
    return printable(text).rstrip().replace("```", "'''")


def printable(text):
    """Without what XML 1.0 cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
