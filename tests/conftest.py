# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: generated inputs are the same on every machine, and never judged by the clock."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

from app.logs import LOGGER

settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

SCENARIOS = "tests/e2e/"


class Shared(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Shares the tests out between processes, file by file, but all scenarios into one.

    One control plane at a time is what two cores carry.
    """

    def _split_scope(self, nodeid: str) -> str:
        return SCENARIOS if nodeid.startswith(SCENARIOS) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shared:
    return Shared(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the scenarios: they take longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(SCENARIOS))


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    """Commands set our logger up for their whole process: none may deafen the tests after it."""
    root = logging.getLogger()
    before = [(each, each.handlers[:], each.level, each.propagate) for each in (root, LOGGER)]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
