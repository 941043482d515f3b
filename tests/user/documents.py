"""Makes programs of the C++ blocks of the documents, so that each is compiled and run.

usage: documents.py check <source tree>                     every block says what becomes of it; 1 if one does not
       documents.py generate <source tree> <document> <out> writes the C++ of one document
       documents.py main <out> <document>...                writes the program that runs the documents' blocks
       documents.py extract <source tree> <document> <dir>  writes each block with file=NAME to <dir>/NAME

What stands behind ```cpp says what a block is:

  run             a program, with main as its last function
  compile         declarations: compiled where it stands, after `using namespace lockstep`
  fragment=NAME   a piece: it takes the place of the line `// the block` in tests/user/documents/NAME.cpp, whose run()
                  is called

One of these may be followed by file=NAME: the block is also the whole of a source file of that name, for projects that
consume the library (extract). `file=NAME.cu` alone is CUDA C++, which is not compiled here.
"""
import pathlib
import re
import sys
import tempfile

FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([^`]*?) *$")
CPP = {"cpp", "c++", "cxx", "cc", "hpp", "h", "c", "cuda", "cu"}  # the last ones in lower case
OTHER = {"", "cmake", "python", "sh", "bash", "console", "text", "json", "csv", "diff"}
MARK = re.compile(r"(?P<kind>run|compile|fragment=(?P<context>[a-z0-9_]+))(?: file=(?P<file>\w+\.(?:cpp|h)))?"
                  r"|file=(?P<cuda>\w+\.cu)")
INCLUDE = re.compile(r"^\s*#\s*include\b.*$")
HERE = re.compile(r"^ *// the block$")
LOOKS_LIKE_CPP = re.compile(r"^\s*#\s*include\s*[<\"]|;\s*(//.*)?$|^\s*(struct|class|template|namespace)\b")
SCRIPT = re.compile(r"(?<![\w/.-])(scripts/[\w./-]+)")
CONTEXTS = "tests/user/documents"
GLOSSARY = "docs/glossary.md"
PLACE = re.compile(r"`([\w./-]+)`(?=[^|]*\|$)", re.M)  # in the last column of a table


class Block:
    def __init__(self, document, line, info, lines):
        self.document, self.line, self.lines = document, line, lines  # line: of the first one inside
        words = info.split()
        self.language, self.mark = (words[0] if words else ""), " ".join(words[1:])
        match = MARK.fullmatch(self.mark) if self.language == "cpp" else None
        self.marked = match is not None
        self.kind = match["kind"] if match else None  # None for CUDA C++ too
        self.context = match["context"] if match else None
        self.file = (match["file"] or match["cuda"]) if match else None

    @property
    def place(self):
        return f"{self.document}:{self.line - 1}"

    @property
    def name(self):
        return f"{function_name(self.document)}_{self.line}"


def function_name(document):
    return re.sub(r"\W", "_", document.removesuffix(".md")).lower()


def documents(root):
    """What is compiled: all Markdown outside of tests."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(file.relative_to(root).as_posix() for file in found)


def blocks(root, document):
    result, fence, start, lines, info = [], None, 0, [], ""
    for number, line in enumerate((root / document).read_text().splitlines(), 1):
        match = FENCE.match(line)
        if fence is None:
            if match:
                fence, start, info, lines = match, number + 1, match[3], []
        elif match and match[2][0] == fence[2][0] and len(match[2]) >= len(fence[2]) and not match[3]:
            result.append(Block(document, start, info, lines))
            fence = None
        else:
            indent = len(fence[1])
            lines.append(line[indent:] if not line[:indent].strip() else line)
    if fence is not None:
        result.append(Block(document, start, info, lines))
    return result


def breaches(root):
    """What is wrong with the marks, one line each."""
    found = []
    used = set()
    for document in documents(root):
        files = set()
        for block in blocks(root, document):
            if block.file in files and block.file:
                found.append(f"{block.place}: a second {block.file} in this document")
            files.add(block.file)
            if block.language.lower() in CPP:
                if block.language != "cpp":
                    found.append(f"{block.place}: write ```cpp, not ```{block.language}")
                elif not block.marked:
                    found.append(f"{block.place}: expected ```cpp run, ```cpp compile or ```cpp fragment=NAME "
                                 f"(tests/user/documents.py), got ```cpp {block.mark}".rstrip())
                elif block.context:
                    used.add(block.context)
                    context = root / CONTEXTS / f"{block.context}.cpp"
                    if not context.exists():
                        found.append(f"{block.place}: there is no {CONTEXTS}/{block.context}.cpp")
                    elif sum(map(bool, map(HERE.match, context.read_text().splitlines()))) != 1:
                        found.append(f"{CONTEXTS}/{match[1]}.cpp: expected one line `// the block`")
                elif block.kind == "run" and not re.search(r"^int main\(", "\n".join(block.lines), re.M):
                    found.append(f"{block.place}: expected a program with main")
            elif block.language.lower() not in OTHER:
                found.append(f"{block.place}: an unknown language, {block.language}")
            elif not block.language and any(map(LOOKS_LIKE_CPP.search, block.lines)):
                found.append(f"{block.place}: this looks like C++ and does not say so")
            else:
                for script in SCRIPT.findall("\n".join(block.lines)):
                    if not (root / script).exists():
                        found.append(f"{block.place}: there is no {script}")
    if (root / GLOSSARY).exists():
        found += [f"{GLOSSARY}: there is no {place}" for place in PLACE.findall((root / GLOSSARY).read_text())
                  if "/" in place and not (root / place).exists()]
    for context in sorted((root / CONTEXTS).glob("*.cpp")):
        if context.stem not in used:
            found.append(f"{CONTEXTS}/{context.name}: no document uses it")
    return found


def with_lines(file, first, lines, includes):
    """The lines under the name of their file; includes go to the top."""
    out = [f'#line {first} "{file}"']
    for number, line in enumerate(lines, first):
        if INCLUDE.match(line):
            includes += [f'#line {number} "{file}"', line]
            line = ""
        out.append(line)
    return out


def wrapped(root, block, includes):
    """A block's own namespace, in which run() does what there is to do."""
    body = with_lines(block.document, block.line, block.lines, includes)
    if block.kind == "run":
        end = max(i for i, line in enumerate(body) if line.startswith("}"))  # main returns 0 by itself, run_main does not
        body[end] = "return 0; " + body[end]
        body = [re.sub(r"^int main\(", "int run_main(", line) for line in body]
        body.append('void run() { if (run_main() != 0) throw std::runtime_error("main returned another number than 0"); }')
    elif block.kind == "compile":
        body.append("void run() {}")
    else:
        file = f"{CONTEXTS}/{block.context}.cpp"
        lines = (root / file).read_text().splitlines()
        here = next(i for i, line in enumerate(lines) if HERE.match(line))
        body = with_lines(file, 1, lines[:here], includes) + body + with_lines(file, here + 2, lines[here + 1:], includes)
    return [f"namespace {block.name} {{", "using namespace lockstep;", *body, f"}}  // namespace {block.name}", ""]


def generate(root, document):
    found = [block for block in blocks(root, document) if block.kind]
    includes, code = [], []
    for block in found:
        code += wrapped(root, block, includes)
    entries = [f'    {{"{block.place}", {block.name}::run}},' for block in found]
    table = ["#line 1 \"generated\"", f"std::vector<std::pair<const char*, void (*)()>> {function_name(document)}() {{",
             "  return {", *entries, "  };", "}"]
    head = ["#include <stdexcept>", "#include <utility>", "#include <vector>", ""]
    if found:  # what the blocks may take for granted; a program includes it itself
        head.append('#include "lockstep/lockstep.h"')
    return "\n".join(head + includes + [""] + code + table) + "\n"


MAIN = """// Runs each block in a process of its own, in an empty folder: what one settles, no other sees.
// The folder is made and removed here, so that nothing stays when a block crashes.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

using Blocks = std::vector<std::pair<const char*, void (*)()>>;
@declarations@

int main(int argc, char** argv) {
  int tried = 0, failed = 0;
  for (Blocks (*list)() : {@names@}) {
    for (const auto& [place, run] : list()) {
      if (argc > 1 && std::strstr(place, argv[1]) == nullptr) continue;
      ++tried;
      std::string folder = std::filesystem::temp_directory_path() / "lockstep-documents-XXXXXX";
      if (mkdtemp(folder.data()) == nullptr) {
        std::perror(folder.c_str());
        return 2;
      }
      std::fflush(stdout);
      const pid_t child = fork();
      if (child == 0) {
        alarm(300);
        if (chdir(folder.c_str()) != 0) return 2;
        int code = 0;
        try {
          run();
        } catch (const std::exception& error) {
          std::printf("%s: error: %s\\n", place, error.what());
          code = 1;
        }
        std::fflush(stdout);
        return code;
      }
      int status = 0;
      waitpid(child, &status, 0);
      std::filesystem::remove_all(folder);
      if (status == 0) continue;
      ++failed;
      if (WIFSIGNALED(status)) std::printf("%s: error: ended by signal %d\\n", place, WTERMSIG(status));
      std::printf("%s: failed\\n", place);
    }
  }
  std::printf("documents: blocks=%d failed=%d\\n", tried, failed);
  return failed != 0 || tried == 0;
}
"""


def main_program(names):
    functions = [function_name(name) for name in names]
    return (MAIN.replace("@declarations@", "\n".join(f"Blocks {name}();" for name in functions))
            .replace("@names@", ", ".join(functions)))


def extract(root, document, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for block in blocks(root, document):
        if block.file:
            write(folder / block.file, "\n".join([f'#line {block.line} "{document}"', *block.lines]) + "\n")


def write(file, text):
    """What stays the same is not compiled again."""
    out = pathlib.Path(file)
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


def self_test():
    """Each mistake gives its one breach."""
    cases = [("```cpp\nint i;\n```\n", "expected ```cpp run"), ("```cpp fragmnt=x\n```\n", "expected ```cpp run"),
             ("```c++ run\n```\n", "write ```cpp"), ("```cpp fragment=absent\n```\n", "there is no"),
             ("```cpp run\nint f();\n```\n", "a program with main"), ("```rust\n```\n", "an unknown language"),
             ("```\nTensor x = y;\n```\n", "looks like C++"), ("~~~\n#include <a>\n~~~\n", "looks like C++"),
             ("- a list\n\n  ```cpp\n  int i;\n  ```\n", "expected ```cpp run"),
             ("```\nscripts/absent --now\n```\n", "there is no scripts/absent"), ("```cpp compile\nint i;\n```\n", None),
             ("````\n```cpp\n````\n", None), ("```cpp compile file=a.cpp\nint i;\n```\n", None),
             ("```cpp file=a.cpp\nint i;\n```\n", "expected ```cpp run"), ("```cpp file=a.cu\nint i;\n```\n", None),
             ("```cpp compile file=a.h\n```\n" * 2, "a second a.h")]
    for text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "README.md").write_text(text)
            found = breaches(root)
            if (not found) if expected is None else (len(found) == 1 and expected in found[0]):
                continue
            print(f"self-test: {text!r} gave {found}, expected {expected}")
            return 1
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "README.md").write_text("```cpp compile\nint i;\n```\n```cpp run file=a.cpp\nint main() {\n}\n```\n")
        extract(root, "README.md", root / "out")
        if [(file.name, file.read_text()) for file in (root / "out").iterdir()] != [
                ("a.cpp", '#line 5 "README.md"\nint main() {\n}\n')]:
            print("self-test: expected extract to write a.cpp")
            return 1
        (root / "docs").mkdir()
        (root / GLOSSARY).write_text("| word | meaning | file |\n|---|---|---|\n| **a** | `b/c.h` or so | `README.md`, `d/e.h` |\n")
        if breaches(root) != [f"{GLOSSARY}: there is no d/e.h"]:
            print(f"self-test: expected d/e.h to be missed, got {breaches(root)}")
            return 1
    return 0


def main(arguments):
    if arguments[0] == "check":
        root = pathlib.Path(arguments[1])
        found = breaches(root)
        print("\n".join(found) or f"{sum(len(blocks(root, d)) for d in documents(root))} blocks, each with its mark")
        return 1 if found else self_test()
    if arguments[0] == "generate":
        root = pathlib.Path(arguments[1])
        write(arguments[3], generate(root, arguments[2]))
        return 0
    if arguments[0] == "extract":
        extract(pathlib.Path(arguments[1]), arguments[2], pathlib.Path(arguments[3]))
        return 0
    write(arguments[1], main_program(arguments[2:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
