# SPDX-License-Identifier: Apache-2.0
"""The last lines of a run of several tiers say which tests failed, as a reader of CI may see no more than those."""

import subprocess
import sys
from pathlib import Path

from tests.tiers import failures

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
