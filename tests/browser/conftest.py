# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the browser tests: one browser per module; the tests skip, with the remedy, where there is none.

There is not one for all modules, because Playwright's event loop runs in this thread while it is open, and other tests
run loops of their own.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.opening import Served, chromium, served
from tests.builders import make_service
from tests.chromium import CHROMIUM
from tests.usage.polls import with_demo_usage


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = CHROMIUM.find()
    if isinstance(program, str):
        pytest.skip(program)
    with chromium(program) as running:
        yield running


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the demo fleet, with its made-up history of use."""
    with served(with_demo_usage(make_service(tmp_path_factory.mktemp("certs")))) as fleet_served:
        yield fleet_served
