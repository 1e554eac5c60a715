# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: generated inputs are the same on every machine, and no test has a deadline by the clock."""

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings

from app.telemetry.logs import LOGGER
from tests import former_release
from tests.tiers import MARKS

settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

SCENARIOS = "tests/e2e/"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that shows that no test depends on those before it."""
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests of each, in another order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tiers, and put the scenarios first, which take longest, so that two processes end together."""
    for item in items:
        for mark, names in MARKS.items():
            if item.nodeid.startswith(names):
                item.add_marker(mark)
    if (seed := config.getoption("--shuffle")) is not None:
        shuffled = Random(seed)
        ranks = {path: shuffled.random() for path in dict.fromkeys(item.path for item in items)}
        shuffled.shuffle(items)
        items.sort(key=lambda item: ranks[item.path])
    items.sort(key=lambda item: not item.nodeid.startswith(SCENARIOS))


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the former release; skips where the history of the clone lacks it."""
    if lack := former_release.missing():
        pytest.skip(lack)
    return former_release.unpack(tmp_path_factory.mktemp("former"))


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    """Restore the loggers, which a command configures for its whole process, after each test."""
    root = logging.getLogger()
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in (root, LOGGER)]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
