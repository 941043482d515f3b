"""Runs the cases of a Catch2 program so that each has a limit of its own, and one that crashes, hangs or spoils the
device takes no other one with it: the cases share a process until one fails, and the next one begins a new process."""
import os
import subprocess
import xml.etree.ElementTree as xml

from gpu.run import Program, end_of, words_of

MOST_NAMES = 300  # on one command line
START_SECONDS = 30  # until the first case of a process begins, besides that case's own limit
TIME_UP = "the time was up"
NOTHING_TO_TEST = ("no CUDA device", "GPUs expected, 0 found")


def escaped(name):
    """A case's name as Catch2 reads it on the command line."""
    for character in "\\,[]":
        name = name.replace(character, "\\" + character)
    return name


def matches(pattern, name):
    """As Catch2 compares: case does not matter, a star may stand at either end."""
    pattern, name = pattern.lower(), name.lower()
    inner = pattern.strip("*")
    if pattern.startswith("*") and pattern.endswith("*"):
        return inner in name
    if pattern.startswith("*"):
        return name.endswith(inner)
    return name.startswith(inner) if pattern.endswith("*") else name == inner


def left_out(root, layer):
    """Patterns of the cases that cannot hold on a real GPU."""
    rows = []
    for line in (root / "tests" / "fake_cuda" / "left_out.txt").read_text().splitlines():
        parts = [part.strip() for part in line.split("|")]
        if not line.startswith("#") and len(parts) == 4 and parts[0] == layer and parts[1] in ("both", "gpu"):
            rows.append(parts[2])
    return rows


def names_of(program, spec, environment):
    """The names of a program's cases, in the order of the sources; None when it does not say."""
    for listing in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        try:  # (the exit code is the number of cases in one version of Catch2)
            done = subprocess.run([str(program), *spec, *listing, "--order", "decl"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, env=environment,
                                  start_new_session=True)
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = done.stdout.decode(errors="replace")
        names = [line.strip() for line in text.splitlines() if line.strip()]
        names = [name[1:-1] if name.startswith('"#') else name for name in names]
        if done.returncode >= 0 and not any("Unrecognised token" in name for name in names):
            return names
    return None


def words(element):
    """What Catch2 says of a case, without its markup."""
    lines = []
    for part in element.iter():
        place = f"{os.path.basename(part.get('filename', ''))}:{part.get('line')}: " if part.get("line") else ""
        text = (part.text or "").strip()
        if part.tag == "Section":
            lines.append(f"in section '{part.get('name', text)}'")
        elif part.tag == "Expression":
            original, expanded = (" ".join((part.findtext(tag) or "").split()) for tag in ("Original", "Expanded"))
            values = f"  with  {expanded}" if expanded != original else ""
            lines.append(f"{place}{part.get('type')}( {original} ){values}")
        elif part.tag in ("Failure", "Exception", "FatalErrorCondition", "Warning", "Info", "Skip"):
            lines.append(f"{place}{part.tag.lower()}: {text}")
        elif part.tag in ("StdOut", "StdErr") and text:
            lines.append(text)
    return "\n".join(lines)


def verdict(element):
    """A row of the record from the element of a case that has ended."""
    overall = element.find("OverallResult")
    good = overall is not None and overall.get("success") == "true"
    said = [(part.text or "").strip() for part in element.iter() if part.tag in ("Warning", "Skip")]
    row = {"result": "pass" if good else "fail", "detail": "" if good else "failed"}
    if not good:
        row["words"] = words(element)
        row["output"] = end_of(row["words"])
    elif any(element.iter("Skip")) or any(text.startswith("skipped: ") for text in said):
        row.update(result="skipped", detail=next((text for text in said if text), ""))
    elif any(" ".join(text.split()).find(sign) >= 0 for text in said for sign in NOTHING_TO_TEST):
        row.update(result="not run", detail="the program found no GPU")
    if overall is not None and overall.get("durationInSeconds"):
        row["seconds"] = round(float(overall.get("durationInSeconds")), 3)
    row["notes"] = [text for text in said if text.startswith(("unverified: ", "found: "))]
    return row


class Listener:
    """Reads the reporter's file while it grows: which case is at work, and which have ended."""

    def __init__(self, path):
        self.path, self.at, self.parser = path, 0, xml.XMLPullParser(["start", "end"])
        self.current = None
        self.broken = False

    def ended(self):
        """(name, row) of the cases that ended since it was last asked."""
        if self.broken or not os.path.exists(self.path):
            return []
        with open(self.path, "rb") as file:
            file.seek(self.at)
            data = file.read()
        self.at += len(data)
        found = []
        try:
            self.parser.feed(data)
            for event, element in self.parser.read_events():
                if element.tag != "TestCase":
                    continue
                self.current = element.get("name").strip() if event == "start" else None
                if event == "end":
                    found.append((element.get("name").strip(), verdict(element)))
                    element.clear()
        except xml.ParseError:
            self.broken = True  # what it says from here on cannot be read; the limits still hold
        return found


class Cases:
    """Runs cases of one program. `done(row)` is told of each, and may say why the rest is not worth its time; `log` is
    told what the processes print."""

    def __init__(self, command, environment, scratch, case_seconds, until, clock, done, log, alone=False):
        self.command, self.environment, self.scratch = command, environment, scratch
        self.case_seconds, self.until, self.clock, self.done, self.log = case_seconds, until, clock, done, log
        self.most = 1 if alone else MOST_NAMES

    def run(self, names):
        """Every name becomes a row, whatever happens."""
        names, idle, why = list(names), 0, None
        while names:
            if self.clock() >= self.until:
                why = TIME_UP
            elif idle == 3:
                why = "its program ends before a case begins"
            if why:
                for name in names:
                    self.done({"name": name, "result": "not run", "detail": why})
                return
            rows = self.run_process(names[:self.most])
            idle = 0 if rows and not rows[-1].get("never_began") else idle + 1
            for row in rows:
                row.pop("never_began", None)
                why = self.done(row) or why
            seen = {row["name"] for row in rows}
            names = [name for name in names if name not in seen]

    def run_process(self, names):
        """Runs these until all have ended or one has failed. The rows of those that have a verdict."""
        report, output = self.scratch / "cases.xml", self.scratch / "cases.txt"
        report.unlink(missing_ok=True)
        spec = ",".join(f'"{escaped(name)}"' for name in names)
        try:
            arguments = [spec, "--order", "decl", "-r", "xml", "-d", "yes", "-o", report]
            program = Program([*self.command, *arguments], self.environment, output, self.scratch)
        except OSError as error:
            return [{"name": names[0], "result": "fail", "detail": f"could not be started: {error.strerror}",
                     "never_began": True}]
        try:
            rows, why, current = self.watch(program, Listener(report))
            by_itself = program.process.poll() is not None
        finally:
            code = program.end()
        text = program.text()
        whole = [f"{row['name']}:\n{row.pop('words')}" for row in rows if "words" in row]
        what = f"{' '.join(map(str, self.command))}: {len(names)} cases from '{names[0]}'"
        self.log(what, "\n\n".join([text] + whole))
        last = rows[-1] if rows else None
        if last and last["result"] == "fail":
            if by_itself and code and code < 0:
                last["detail"] = words_of(code)
        elif why == TIME_UP:
            if current:
                rows.append({"name": current, "result": "not run", "detail": f"{TIME_UP} while it ran"})
        elif why or current or not rows:  # in the midst of a case, or before the first one
            named = {row["name"] for row in rows}
            name = current or next((name for name in names if name not in named), names[-1])
            rows.append({"name": name, "result": "fail", "detail": why or words_of(code), "output": end_of(text),
                         "seconds": round(self.clock() - self.began, 2), "never_began": current is None})
        elif code != 0 and len(names) == 1:
            last.update(result="fail", detail=words_of(code), output=end_of(text))
        elif code != 0:
            rows.append({"name": f"after '{last['name']}'", "result": "fail", "detail": words_of(code),
                         "output": end_of(text)})
        return rows

    def watch(self, program, listener):
        """Until the program has ended, a case has failed, or a limit is reached: the rows so far, which limit, and the
        case that was at work."""
        rows, current, over = [], None, False
        self.began = self.clock()
        while True:
            over = over or program.over(0.02 if program.seconds() < 1 else 0.1)
            for name, row in listener.ended():
                row.update(name=name, seconds=row.get("seconds", round(self.clock() - self.began, 2)))
                self.began, current = self.clock(), None
                rows.append(row)
                if row["result"] == "fail":
                    # Where a case has reported a fatal signal its process ends by itself, and says by which.
                    program.over(2 if "fatalerrorcondition" in row["output"] else 0)
                    return rows, "", None
            if over:
                return rows, "", listener.current
            if listener.current != current:
                self.began, current = self.clock(), listener.current
            limit = self.case_seconds + (0 if rows or current else START_SECONDS)
            if self.clock() - self.began > limit:
                return rows, f"did not end within {self.case_seconds:.0f} s", listener.current
            if self.clock() >= self.until:
                return rows, TIME_UP, listener.current
            if program.prints_too_much():
                return rows, "printed too much", listener.current
