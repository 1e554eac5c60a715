# SPDX-License-Identifier: Apache-2.0
"""Messages and docstrings of app/ use words that a Kubernetes engineer knows."""

from tests.bench.messages import Text, docstrings, idioms, messages


def test_no_message_uses_private_words() -> None:
    """F131: reasons, findings, help, logs and pages are plain sentences."""
    assert idioms(messages()) == []


def test_no_docstring_uses_private_words() -> None:
    """F131."""
    assert idioms(docstrings()) == []


def test_private_word_is_found_outside_of_code_only() -> None:
    """F131."""
    texts = [
        Text("a.py", 1, "the pod is told"),
        Text("a.py", 2, "the field `ill`"),
        Text("a.py", 3, "until it is filled"),
    ]

    assert idioms(texts) == ["a.py:1: the pod is told"]


def test_every_kind_of_text_is_read() -> None:
    """F131: modules, templates and fact tables are all in the list."""
    endings = {text.path.rpartition(".")[2] for text in messages()}

    assert endings == {"py", "html", "yaml"}
