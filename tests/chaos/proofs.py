# SPDX-License-Identifier: Apache-2.0
"""Which tests prove which fault: the docstring of a test names the faults that it proves ("Fault 24: ...")."""

import re
from collections.abc import Mapping

from tests import docstrings
from tests.docstrings import TESTS

NAMED = re.compile(r"\b[Ff]aults? (\d+(?:(?:, | and |, and )\d+)*)")
SECTION = "## Faults to try on a real cluster"


def numbers(docstring: str) -> frozenset[int]:
    """Read the numbers of the faults that a docstring names."""
    return frozenset(int(number) for mention in NAMED.findall(docstring) for number in re.findall(r"\d+", mention))


def proofs() -> Mapping[str, frozenset[int]]:
    """Map each test that proves faults, as pytest calls it, to their numbers."""
    return docstrings.proofs(NAMED, numbers)


def on_a_real_cluster() -> Mapping[int, str]:
    """Read the rows of deploy/README.md: the rest of the row by the number of the fault."""
    text = (TESTS.parent / "deploy" / "README.md").read_text("utf-8").partition(SECTION)[2].partition("\n## ")[0]
    return {int(number): row for number, row in re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)}
