# SPDX-License-Identifier: Apache-2.0
"""Strict YAML: text that two YAML readers would read differently is an error with its place and a remedy (CFG-05)."""

from typing import Any

import pytest

from app.policy.document import DEEPEST_YAML, LARGEST_POLICY_BYTES
from app.values.errors import PolicyError
from tests.finished import read_documents

ANCHORS = "anchors and aliases are refused, write the value out"
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


def problems(text: str) -> tuple[str, ...]:
    """Return the messages of a text that must be refused."""
    with pytest.raises(PolicyError) as caught:
        read_documents("p.yaml", text)
    return caught.value.problems


def values(text: str) -> list[Any]:
    """Return the values of all documents of a text."""
    return [document.value for document in read_documents("p.yaml", text)]


def ambiguous(place: str, word: str) -> str:
    """Write the message about a scalar that must be quoted."""
    return f'p.yaml:{place}: {word} means different things to different YAML readers, quote it: "{word}"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: 1\nb: 2\na: 3\n", "p.yaml:3:1: a: given twice, remove one", id="duplicate key"),
        pytest.param("a:\n  - {b: 1, b: 1}\n", "p.yaml:2:12: b: given twice, remove one", id="duplicate key, nested"),
        pytest.param("1: a\n'1': b\n", "p.yaml:2:1: 1: given twice, remove one", id="duplicate key, once quoted"),
        pytest.param("a: &x 1\n", f"p.yaml:1:4: {ANCHORS}", id="anchor"),
        pytest.param("a: &x {b: 1}\nc: *x\n", f"p.yaml:1:4: {ANCHORS}", id="alias"),
        pytest.param("a: {b: 1}\nc:\n  <<: &x {d: 1}\n", f"p.yaml:3:7: {ANCHORS}", id="merge key"),
        pytest.param(BOMB, f"p.yaml:1:4: {ANCHORS}", id="alias bomb"),
        pytest.param("? [a, b]\n: c\n", "p.yaml:1:3: a key that is no word, wants a field name", id="key is a list"),
    ],
)
def test_what_a_policy_never_needs_is_refused_where_it_stands(text: str, expected: str) -> None:
    assert (expected,) == problems(text)


WORDS = ("yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF", "y", "Y", "n", "N")
BOOLEANS = ("True", "TRUE", "False", "FALSE")
NUMBERS = ("012", "007", "0_1", "12:30", "1:2:3", "190:20:30")


@pytest.mark.parametrize("word", [*WORDS, *BOOLEANS, *NUMBERS])
def test_scalar_that_yaml_1_1_reads_otherwise_must_be_quoted(word: str) -> None:
    """Fault 16."""
    assert (ambiguous("2:6", word),) == problems(f"a:\n  b: {word}\n")


@pytest.mark.parametrize("word", ["yes", "on", "012", "12:30"])
def test_key_that_yaml_1_1_reads_otherwise_must_be_quoted(word: str) -> None:
    assert (ambiguous("2:3", word),) == problems(f"a:\n  {word}: x\n")


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "012", "12:30", "true", "1", "1.5", "null", "~"])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_quoted_scalar_is_a_string(word: str, quote: str) -> None:
    """Fault 16."""
    expected = [{"a": word}]

    assert expected == values(f"a: {quote}{word}{quote}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("true", True, id="true"),
        pytest.param("false", False, id="false"),
        pytest.param("0", 0, id="zero"),
        pytest.param("-12", -12, id="negative integer"),
        pytest.param("1000000", 1_000_000, id="integer"),
        pytest.param("1.5", 1.5, id="number"),
        pytest.param("null", None, id="null"),
        pytest.param("~", None, id="tilde"),
        pytest.param("", None, id="nothing"),
        pytest.param("12.4.1", "12.4.1", id="version of three fields"),
        pytest.param("40Gi", "40Gi", id="quantity"),
        pytest.param("2026-11-21", "2026-11-21", id="a date is a string"),
        pytest.param("1e3", "1e3", id="an exponent is a string"),
        pytest.param("none", "none", id="a word"),
        pytest.param("nothing", "nothing", id="a word that starts like no"),
    ],
)
def test_plain_scalar_reads_as_in_yaml_1_2(text: str, expected: object) -> None:
    assert [{"a": expected}] == values(f"a: {text}\n")


def test_nesting_as_deep_as_allowed_is_read() -> None:
    assert len(values("[" * DEEPEST_YAML + "]" * DEEPEST_YAML)) == 1


def test_deeper_nesting_is_refused_where_it_starts() -> None:
    levels = DEEPEST_YAML + 1
    expected = f"p.yaml:1:{levels}: nested deeper than 64 levels, wants a flat policy"

    assert (expected,) == problems("[" * levels + "]" * levels)


def test_nesting_bomb_is_refused_without_being_built() -> None:
    expected = "p.yaml:1:65: nested deeper than 64 levels, wants a flat policy"

    assert (expected,) == problems("[" * 500_000)


def test_text_as_large_as_a_configmap_is_read() -> None:
    line = "a: " + "x" * 60 + "\n"
    documents = values(line + "#" * (LARGEST_POLICY_BYTES - len(line)))

    assert len(documents) == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "x" * (LARGEST_POLICY_BYTES - 2), id="ascii"),
        pytest.param("a: " + "ü" * (LARGEST_POLICY_BYTES // 2 - 1), id="bytes count, not characters"),
    ],
)
def test_larger_text_is_refused(text: str) -> None:
    expected = f"p.yaml:1:1: {len(text.encode())} bytes, wants at most 1048576: split it into several files"

    assert (expected,) == problems(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("a: [1, 2\n", "2:1", id="cut off in the middle"),
        pytest.param("a: 1\n\tb: 2\n", "2:1", id="tab as indentation"),
        pytest.param("a: b: c\n", "1:5", id="two colons"),
        pytest.param("a: 'x\n", "2:1", id="open quote"),
    ],
)
def test_text_that_is_not_yaml_is_refused_where_it_stops_making_sense(text: str, place: str) -> None:
    expected = f"p.yaml:{place}: not YAML: "

    (message,) = problems(text)

    assert expected == message[: len(expected)]
    assert len(message.splitlines()) == 1


def test_control_character_is_refused_in_one_line() -> None:
    (message,) = problems("a: x\nb: \x00\n")

    assert len(message.splitlines()) == 1
    assert "not YAML" in message


def test_every_problem_of_a_document_is_named_at_once() -> None:
    expected = (ambiguous("1:4", "yes"), "p.yaml:3:1: a: given twice, remove one", ambiguous("3:4", "012"))

    assert expected == problems("a: yes\nb: 1\na: 012\n")


def test_documents_of_one_file_are_told_apart_and_empty_ones_skipped() -> None:
    expected = [{"a": 1}, {"b": 2}]

    documents = values("---\na: 1\n---\n# nothing\n---\nb: 2\n")

    assert expected == documents


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(("b",), "p.yaml:2:1", id="key"),
        pytest.param(("b", "c", 1), "p.yaml:4:5", id="item of a list"),
        pytest.param(("b", "d"), "p.yaml:2:1", id="absent: the nearest one around"),
        pytest.param((), "p.yaml:1:1", id="the document"),
    ],
)
def test_value_is_located_by_line_and_column(path: tuple[str | int, ...], expected: str) -> None:
    (document,) = read_documents("p.yaml", "a: 1\nb:\n  c: [x,\n    z]\n")

    assert expected == document.locate(path)
