"""Runs one program with a limit of time, and sees to it that nothing of it stays behind."""
import os
import pathlib
import signal
import subprocess
import time

MOST_OUTPUT = 64 << 20  # bytes; a program that prints more is ended
ENDING_SECONDS = 10     # after the signal that ends a program


def end_of(text, lines=40, characters=6000):
    """The last lines of a text."""
    return "\n".join(text[-characters:].rstrip().splitlines()[-lines:])


def middle_left_out(text, characters):
    """The beginning and the end of a text that is too long."""
    if len(text) <= characters:
        return text
    head = characters // 4
    return f"{text[:head]}\n... {len(text) - characters} characters left out ...\n{text[head - characters:]}"


def words_of(code):
    """What an exit code says, in words."""
    if code is None:
        return "did not end, and could not be ended"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


class Program:
    """A program at work: a session of its own, both its outputs in one file."""

    def __init__(self, command, environment, output, folder):
        self.output = pathlib.Path(output)
        self.began = time.monotonic()
        with open(self.output, "wb") as file:
            self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=file,
                                            stderr=subprocess.STDOUT, env=environment, cwd=folder,
                                            start_new_session=True)

    def over(self, seconds):
        """Waits that long at most; true when the program has ended."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def prints_too_much(self):
        return self.output.stat().st_size > MOST_OUTPUT

    def end(self):
        """Ends the program and what it has started. Its exit code; None when it cannot be ended."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.over(ENDING_SECONDS)
        return self.process.returncode

    def seconds(self):
        return time.monotonic() - self.began

    def text(self):
        with open(self.output, "rb") as file:
            return middle_left_out(file.read(2 * MOST_OUTPUT).decode(errors="replace"), 8 << 20)


class Outcome:
    """How a program ended: `why` is empty when it ended by itself with 0."""

    def __init__(self, why, text, seconds):
        self.why, self.text, self.seconds = why, text, round(seconds, 2)


def run(command, environment, seconds, output, folder):
    """Runs a program to its end, or for that long."""
    try:
        program = Program(command, environment, output, folder)
    except OSError as error:
        return Outcome(f"could not be started: {error.strerror}", "", 0)
    why = ""
    try:
        while not program.over(0.05 if program.seconds() < 2 else 0.25):
            if program.seconds() > seconds:
                why = f"did not end within {seconds:.0f} s"
                break
            if program.prints_too_much():
                why = f"printed more than {MOST_OUTPUT >> 20} MiB"
                break
    finally:  # what it left running, too; and all of it when this one is interrupted
        code = program.end()
    if not why and code != 0:
        why = words_of(code)
    return Outcome(why, program.text(), program.seconds())


def printed_by(command, seconds=30):
    """What a command prints; None when it cannot run, fails, or takes too long."""
    try:
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=seconds, start_new_session=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
