# SPDX-License-Identifier: Apache-2.0
"""List every text of app/ that a person can see, and hold the list of words that none of them may use.

`python -m tests.bench.messages` prints the list to be read aloud: file, line and text, with `{…}` for what is filled
in. A text is a string of two words or more that is not a docstring, what a page template shows, and what a fact table
says. With `--docstrings` it prints the docstrings instead.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

APP = Path(__file__).parents[2] / "app"
SENTENCE = re.compile(r"[A-Za-z{…}'’,;:]+ +\S*[A-Za-z{…}]")
"""Two words: enough to be read by a person. Single words are keys, labels and names."""
MARKUP = re.compile(r"{#.*?#}|{%.*?%}|<(?:script|style)\b.*?</(?:script|style)>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
SHOWN_ATTRIBUTE = re.compile(r'(?:title|aria-label|placeholder|alt)="([^"]*)"')
TABLE_TEXT = re.compile(r"\b(?:says|meaning|why|remedy): *('(?:[^']|'')*'|[^,}]*)")
IDIOM = re.compile(
    r"\b(?:seat(?:s|ed)?|lift(?:s|ed)?|homeless|ill|ailing|ghosts?|slipped|kin|the door|told|amounts? to"
    r"|mend(?:s|ed|ing)?|whoever|whom|nobody|somebody|(?:for|by|of|to|from|and|,) who)\b",
    re.IGNORECASE,
)
"""Words of this project alone, and pronouns without a noun: Kubernetes' own documentation uses none of them so."""
CODE = re.compile(r"`[^`]*`|#[\w-]+")
"""A name in code may have such a word, as the policy field `health.ill` has, and so may a heading that is linked to."""
FILLED_IN = re.compile(r"{{.*?}}", re.DOTALL)


class Text(NamedTuple):
    """One text: its file from the root, its line there, and its words."""

    path: str
    line: int
    words: str


@cache
def messages() -> tuple[Text, ...]:
    """List the strings of the modules that are not docstrings, and the visible texts of the page's templates."""
    return tuple(_messages())


def _messages() -> Iterator[Text]:
    for path, tree in _modules():
        documented = {id(node) for node in _docstrings(tree)}
        pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in documented | pieces:
                words = _words(node)
                if SENTENCE.search(words):
                    yield Text(path, node.lineno, words)
    for table in sorted((APP / "knowledge").glob("*.yaml")):
        for number, line in enumerate(table.read_text("utf-8").splitlines(), 1):
            for text in TABLE_TEXT.findall(line):
                yield Text(str(table.relative_to(APP.parent)), number, text.strip("'"))
    for template in sorted((APP / "web" / "templates").rglob("*.html")):
        yield from _shown(str(template.relative_to(APP.parent)), template.read_text("utf-8"))


def docstrings() -> Iterator[Text]:
    """List the docstrings of modules, classes and functions, and those below constants and fields."""
    for path, tree in _modules():
        for node in _docstrings(tree):
            yield Text(path, node.lineno, " ".join(_words(node).split()))


def idioms(texts: Iterable[Text]) -> list[str]:
    """List the texts that use a word of IDIOM outside of code, with their place."""
    return [f"{text.path}:{text.line}: {text.words}" for text in texts if IDIOM.search(CODE.sub("", text.words))]


@cache
def _modules() -> tuple[tuple[str, ast.Module], ...]:
    modules = sorted(APP.rglob("*.py"))
    return tuple((str(path.relative_to(APP.parent)), ast.parse(path.read_text("utf-8"))) for path in modules)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """List the strings that are statements by themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _words(node: ast.AST) -> str:
    """Write a string as it reads, with `{…}` for each value that is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) for part in node.values)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "{…}"


def _shown(path: str, template: str) -> Iterator[Text]:
    """List the texts of a template between tags, and those of attributes that a browser shows."""
    bare = FILLED_IN.sub("{…}", MARKUP.sub(lambda found: "\n" * found[0].count("\n"), template))
    for number, line in enumerate(bare.splitlines(), 1):
        for text in (*SHOWN_ATTRIBUTE.findall(line), " ".join(TAG.sub(" ", line).split())):
            if SENTENCE.search(text):
                yield Text(path, number, text)


if __name__ == "__main__":
    for text in docstrings() if "--docstrings" in sys.argv else messages():
        print(f"{text.path}:{text.line}: {text.words}")
