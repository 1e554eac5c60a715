# SPDX-License-Identifier: Apache-2.0
"""What a run says at its end: which tests failed, as a reader of CI may see no more; and why a test was skipped."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.docstrings import ROOT
from tests.tiers import MARKS, failures

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no such\\nport")

def test_whose_fixture_fails(broken): pass
def test_that_fails(): assert 1 == 2
def test_that_passes(): pass
"""


def test_failed_tests_and_failed_fixtures_are_named_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, "utf-8")
    command = (sys.executable, "-m", "pytest", "-q", "--junitxml", "e2e.xml", "-p", "no:cacheprovider", "test_some.py")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60).returncode == 1

    assert list(failures(tmp_path)) == [
        'e2e: test_some.py::test_whose_fixture_fails failed: failed on setup with "OSError: no such port"',
        "e2e: test_some.py::test_that_fails failed: assert 1 == 2",
    ]


def test_each_file_of_a_tier_exists() -> None:
    """pytest runs no test at all where one file that it is given is missing."""
    files = {name.partition("::")[0] for names in MARKS.values() for name in names}

    assert [file for file in files if not (ROOT / file).exists()] == []


SENTENCES = re.compile(r"[A-Z{].*[.}] [A-Z{].*[.}]", re.DOTALL)
"""Why a test is skipped, and what would make it run; {} is what is computed."""


def skip_reasons(source: Path) -> Iterator[str]:
    """List the reasons of skips that a file writes out; others come from the finders of programs."""
    text = source.read_text("utf-8")
    if "pytest.skip" not in text and "skipif" not in text:
        return
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("pytest.skip", "pytest.mark.skipif"):
            continue
        for said in (*call.args[:1], *(word.value for word in call.keywords if word.arg == "reason")):
            parts = said.values if isinstance(said, (ast.JoinedStr, ast.BoolOp)) else [said]
            words = ["{}" if isinstance(part, ast.FormattedValue) else getattr(part, "value", None) for part in parts]
            if reason := "".join(word for word in words if isinstance(word, str)):
                yield reason


def test_skipped_tests_say_why_and_what_would_make_them_run() -> None:
    reasons = [reason for path in (ROOT / "tests").rglob("*.py") for reason in skip_reasons(path)]

    assert len(reasons) >= 10
    assert [reason for reason in reasons if not SENTENCES.fullmatch(reason)] == []
