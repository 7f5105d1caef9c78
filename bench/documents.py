"""The files that the scripts here read and write. What is wrong with one ends in a sentence."""

import contextlib
import json
import os
import stat


class Refused(Exception):
    """A sentence on a file, or on what is in it."""


# What comes of using a document that is not what was expected, or of parsing it.
FAULTS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def expecting(paths, what):
    """Around all that reads the files and uses what they say."""
    try:
        yield
    except OSError as error:
        raise Refused(str(error)) from error
    except FAULTS as error:
        raise Refused(f"{paths}: expected {what}: {type(error).__name__}: {error}") from error


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def check_writable(path):
    """Before minutes of timing. A file that is there stays as it is, and none is left behind."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
                return  # a pipe waits for its reader
        is_new = not os.path.exists(path)
        with open(path, "a", encoding="utf-8"):
            pass
        if is_new:
            os.unlink(path)
    except OSError as error:
        raise Refused(str(error)) from error


def write(path, document):
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
    except OSError as error:
        raise Refused(str(error)) from error


def marked(path, mark):
    """A page in three: before, between and behind its two lines that are `mark`."""
    with expecting(path, "a page"):
        with open(path, encoding="utf-8") as file:
            parts = file.read().split(mark)
    if len(parts) != 3:
        raise Refused(f"{path} has not two lines {mark}")
    return parts


def replace_marked(path, mark, lines):
    """What is between them becomes `lines`."""
    before, _, behind = marked(path, mark)
    with expecting(path, "a page"):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([before + mark, *lines, mark + behind]))


def printable(text):
    """A file's words do not reach the terminal as they are."""
    return "".join(c if c.isprintable() else " " for c in text)
