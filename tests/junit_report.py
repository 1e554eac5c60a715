# SPDX-License-Identifier: Apache-2.0
"""The tests of a pytest run, as its JUnit XML report lists them."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WHY_CHARACTERS = 300
OUTCOMES = ("failure", "error", "skipped")


@dataclass(frozen=True, slots=True)
class Seen:
    """One test; `outcome` is passed, failed or skipped, `why` is the reason of a failure or a skip."""

    file: str
    name: str
    seconds: float
    outcome: str
    why: str


def read(report: Path) -> tuple[float, list[Seen]]:
    """Read JUnit XML as pytest writes it: the seconds of the whole run, and the tests."""
    (suite,) = ElementTree.parse(report).getroot()
    return float(suite.get("time", "0")), list(_tests(suite))


def _tests(suite: ElementTree.Element) -> Iterator[Seen]:
    for test in suite.iter("testcase"):
        outcomes = [child for child in test if child.tag in OUTCOMES]
        tags = {child.tag for child in outcomes}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if tags else "passed"
        why = " ".join(next((child.get("message", "") for child in outcomes), "").split())[:WHY_CHARACTERS]
        seconds = float(test.get("time", "0"))
        yield Seen(test.get("classname", "").replace(".", "/"), test.get("name", ""), seconds, outcome, why)
