# SPDX-License-Identifier: Apache-2.0
"""CEL's functions of strings, and regular expressions.

The functions are those of google/cel-go ext/strings.go, version 2, and of Kubernetes' regex library (kubernetes
staging/src/k8s.io/apiserver/pkg/cel/library/regex.go). Go's regular expressions are RE2's, which take time linear to
the text whatever the pattern
(docs/decisions/0036-evaluate-device-selectors-by-an-evaluator-of-our-own.md).
"""

from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import re2

from app.dra.cel_syntax import EvaluationError, NotJudged

_LOWER, _UPPER = str.maketrans(ascii_uppercase, ascii_lowercase), str.maketrans(ascii_lowercase, ascii_uppercase)
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


@lru_cache(maxsize=512)
def _pattern(text: str) -> Any:
    """Compile a regular expression.

    Raises EvaluationError, and NotJudged for one whose program is too large for RE2, which Go may take.
    """
    if r"\C" in text:
        raise NotJudged(r"\C in a regular expression")
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as problem:
        if "too large" in str(problem):
            raise NotJudged("a regular expression so large") from None
        raise EvaluationError(f"error parsing regexp: {_words(problem)}") from None


def _words(problem: Exception) -> str:
    said = problem.args[0] if problem.args else problem
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def check_pattern(text: str) -> None:
    """Compile a regular expression to see whether it is one.

    Raises EvaluationError, NotJudged.
    """
    _pattern(text)


def matches(text: str, pattern: str) -> bool:
    """Tell whether a regular expression matches anywhere in a text.

    Raises EvaluationError, NotJudged.
    """
    return _pattern(pattern).search(text) is not None


def find_first(text: str, pattern: str) -> str:
    """Return the first match, or an empty text.

    Raises EvaluationError, NotJudged.
    """
    match = _pattern(pattern).search(text)
    return match.group(0) if match else ""


def char_at(text: str, index: int) -> str:
    """Return the character at an index; behind the last it is empty.

    Raises EvaluationError.
    """
    _check_index(index, len(text))
    return text[index : index + 1]


def _check_index(index: int, length: int) -> None:
    if not 0 <= index <= length:
        raise EvaluationError(f"index out of range: {index}")


def index_of(text: str, part: str, offset: int = 0) -> int:
    """Return where a part begins at or after an offset, or -1.

    Raises EvaluationError.
    """
    if not part:
        return offset
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    return text.find(part, offset)


def last_index_of(text: str, part: str) -> int:
    """Return where a part begins last, or -1.

    Raises EvaluationError, as cel-go does for a part that is longer in characters than the text, but not in bytes.
    """
    if not part:
        return len(text)
    if len(text.encode()) < len(part.encode()):
        return -1
    return last_index_before(text, part, len(text) - 1)


def last_index_before(text: str, part: str, offset: int) -> int:
    """Return where a part begins last, but not after an offset, or -1.

    Raises EvaluationError.
    """
    if not part:
        return offset
    if offset < 0:
        raise EvaluationError(f"index out of range: {offset}")
    return text.rfind(part, 0, offset + len(part)) if offset < len(text) else -1


def lower_ascii(text: str) -> str:
    """Make the letters A to Z small."""
    return text.translate(_LOWER)


def upper_ascii(text: str) -> str:
    """Make the letters a to z large."""
    return text.translate(_UPPER)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """Replace the first `count` occurrences; all, if it is negative."""
    return text.replace(old, new, max(count, -1))


def split(text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    """Cut a text at separators into at most `count` parts; without a limit, if it is negative (Go strings.SplitN)."""
    if count == 0:
        return ()
    if separator:
        return tuple(text.split(separator, count - 1 if count > 0 else -1))
    if count < 0 or count >= len(text):
        return tuple(text)
    return (*text[: count - 1], text[count - 1 :])


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from `start` up to `end`.

    Raises EvaluationError.
    """
    last = len(text) if end is None else end
    if end is not None and start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    _check_index(start, len(text))
    _check_index(last, len(text))
    return text[start:last]


_GO_SPACES = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    "\u202f\u205f\u3000"
)


def trim(text: str) -> str:
    """Cut white space off both ends (Go strings.TrimSpace)."""
    return text.strip(_GO_SPACES)


def join(texts: tuple[Any, ...], separator: str = "") -> str:
    """Put texts together.

    Raises EvaluationError.
    """
    if not all(type(text) is str for text in texts):
        raise EvaluationError("join: invalid input")
    return separator.join(texts)
