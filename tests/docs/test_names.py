#!/usr/bin/env python3
"""The files that README.md and docs/ name are there, and so is what their links point to.

test_names.py SOURCE_DIR
"""

import fnmatch
import os
import re
import sys

# Names of files that are users' own, or made.
OTHERS = {"app.c", "bars.json", "config.json", "model.safetensors.index.json", "tools.json",
          "tuning.json", "PAGE.md"}
NAME = re.compile(r"[\w./<>*-]*[\w*]\.(?:clh?|c|h|py|sh|txt|json|md|cmake|ll|wrap|supp)\b")


def files_of(source):
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith((".", "build", "__"))]
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), source)


def is_there(name, page, files):
    """`*` and `<op>` are any text; foo is an example; a name may leave out its folder."""
    if os.path.basename(name) in OTHERS or re.search(r"\bfoo", name):
        return True
    pattern = re.sub(r"<\w+>", "*", name.removeprefix("./"))
    beside = os.path.normpath(os.path.join(os.path.dirname(page), pattern))
    return any(fnmatch.fnmatchcase(file, wanted) for file in files
               for wanted in (pattern, beside, "*/" + pattern))


def slugs(text):
    """Anchors of a page's headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def faults_of(page, texts, files):
    text = re.sub(r"^```.*?^```", "", texts[page], flags=re.MULTILINE | re.DOTALL)
    for line in text.splitlines():
        for code in re.findall(r"`([^`]+)`", line):
            yield from (name for name in NAME.findall(code) if not is_there(name, page, files))
        for link in re.findall(r"\]\(([^)\s]+)\)", line):
            if link.startswith(("http:", "https:")):
                continue
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if target not in files:
                yield link
            elif anchor and anchor not in slugs(texts.get(target, "")):
                yield link


def main():
    source = sys.argv[1]
    files = set(files_of(source))
    pages = [file for file in files if re.match(r"(README|CHANGELOG)\.md$|docs/.*\.md$", file)]
    texts = {}
    for page in pages:
        with open(os.path.join(source, page), encoding="utf-8") as file:
            texts[page] = file.read()
    faults = [f"{page}: there is no {name}" for page in sorted(pages)
              for name in faults_of(page, texts, files)]
    assert not is_there("no_such_file.c", "docs/x.md", files) and is_there("core.h", "x.md", files)
    print("\n".join(faults) or f"{len(pages)} pages: all names are there")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
