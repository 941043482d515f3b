"""What Doxygen reads in place of a file: filter.py FILE writes it to standard output, with a line for each line.

Headers: plain `//` comments above declarations and behind members become documentation, `// ---- heading` begins a group.
Markdown: the marks of code blocks, anchors, and links that only a source tree has are left out.
"""
import pathlib
import re
import sys

COMMENT = re.compile(r"^(\s*)//(?!/)(.*)$")
HEADING = re.compile(r"^ -+ (.*)$")
TRAILING = re.compile(r"""^((?:[^/"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/(?!/))*?\S)(\s*)//(?!/) ?(.*)$""")
NOT_DOCUMENTED = re.compile(r"^\s*($|#|\}|//|(public|protected|private):)")
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
MEMBER = re.compile(r"^\s*[^#}\s].*[\w;,]$|^\s*\w+,?$")
ACCESS = re.compile(r"^\s*(public|protected|private):")
PRIVATE = re.compile(r"NOLINT|clang-format")


def escaped(text):
    """Text that Doxygen shows as it is, but for what stands in backticks."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"[<>\\@#%&]", lambda m: {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(m[0], "\\" + m[0]), parts[i])
    return "`".join(parts)


def documented(lines, start="///"):
    """A paragraph of comments as documentation, one line for each; indented pieces are code."""
    out, code = [], False
    for i, text in enumerate(lines):
        indented = text.startswith("  ") and (code or i == 0 or not lines[i - 1].strip())
        blank_in_code = code and not text.strip() and any(line.startswith("  ") for line in lines[i + 1:i + 2])
        if not code and indented:
            out.append("@code{.cpp}\n" + start + text)
        elif code and not indented and not blank_in_code:
            out[-1] += "\n" + start + " @endcode"
            out.append(escaped(text))
        else:
            out.append(text if code else escaped(text))
        code = indented or blank_in_code
    if code:
        out[-1] += "\n" + start + " @endcode"
    return [start + (line if line.startswith(" ") or not line else " " + line) for line in out]


class Scopes:
    """Tells declarations of namespaces and types from the bodies of functions."""

    def __init__(self):
        self.kinds, self.statement = [], ""

    def inside_body(self):
        return "body" in self.kinds

    def read(self, line):
        code = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//.*', "", line)
        if code.lstrip().startswith("#"):
            return
        for part in re.split(r"([{};])", code):
            if part == "{":
                is_scope = SCOPE.search(self.statement) and not re.search(r"[)=]\s*(const|noexcept|override)*\s*$",
                                                                           self.statement)
                self.kinds.append("scope" if is_scope else "body")
                self.statement = ""
            elif part == "}":
                if self.kinds:
                    self.kinds.pop()
                self.statement = ""
            elif part == ";":
                self.statement = ""
            else:
                self.statement += " " + part


def paragraph_end(lines, begin):
    """The line after the comments that belong together: a heading that is no sentence stands alone."""
    heading = HEADING.match(COMMENT.match(lines[begin])[2])
    end = begin + 1
    while end < len(lines) and (match := COMMENT.match(lines[end])) and not HEADING.match(match[2]):
        if heading and end == begin + 1 and not re.search(r"[.:] ", heading[1]) and match[2].strip()[:1].isupper():
            break
        end += 1
    return end


def header(text):
    lines = text.splitlines()
    out, scopes, groups = [], Scopes(), []  # groups: the indentation of those that are open
    column = None  # of a comment behind a member that goes on
    i = 0
    while i < len(lines):
        line = lines[i]
        match = COMMENT.match(line)
        if match and column is not None and len(match[1]) == column:
            out.append(f"{match[1]}///< {escaped(match[2].strip())}")
            i += 1
            continue
        column = None
        if match and not scopes.inside_body():
            end = paragraph_end(lines, i)
            indent, paragraph = match[1], [COMMENT.match(each)[2] for each in lines[i:end]]
            heading = HEADING.match(paragraph[0])
            if i == 0:
                out += ["/// @file"] + documented(paragraph)
            elif heading:
                closing = "/** @} */ " if groups and groups[-1] == indent else ""
                if not closing:
                    groups.append(indent)
                title, _, rest = " ".join([heading[1]] + [each.strip() for each in paragraph[1:]]).partition(". ")
                out.append(f"{indent}{closing}/** @name {escaped(title.rstrip('.:'))}\n{indent}{escaped(rest)} */ /** @{{ */")
                out += [""] * (end - i - 1)
            elif end < len(lines) and not NOT_DOCUMENTED.match(lines[end]) and not PRIVATE.search(paragraph[0]):
                out += [indent + each.replace("\n", "\n" + indent) for each in documented(paragraph)]
            else:
                out += lines[i:end]
            i = end
            continue
        while groups and (ACCESS.match(line) or len(line) > line.find("}") == max(len(groups[-1]) - 2, 0)
                          and line.lstrip().startswith("}")):
            out.append(f"{groups.pop()}/** @}} */")
        trailing = None if match or scopes.inside_body() else TRAILING.match(line)
        scopes.read(line)
        if trailing and not scopes.inside_body() and MEMBER.search(trailing[1]) and not PRIVATE.search(trailing[3]):
            column = len(trailing[1]) + len(trailing[2])
            out.append(f"{trailing[1]}{trailing[2]}///< {escaped(trailing[3])}")
        else:
            out.append(line)
        i += 1
    return "\n".join(out) + "\n"


def markdown(folder, text):
    text = re.sub(r"^( *```)cpp .*$", r"\1cpp", text, flags=re.M)
    text = re.sub(r"(?<!`)`([^`\n]*'[^`\n]*)`(?!`)", r"``\1``", text)  # a quote would end a piece of code

    def link(match):
        page = match[2].endswith(".md") and "/examples/" not in match[2] and (folder / match[2]).exists()
        return f"[{match[1]}]({match[2]})" if page else match[1]

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)#]*)(#[^)]*)?\)", link, text)


def main():
    path = pathlib.Path(sys.argv[1])
    text = path.read_text()
    sys.stdout.write(markdown(path.parent, text) if path.suffix == ".md" else header(text))


if __name__ == "__main__":
    main()
