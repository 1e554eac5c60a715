# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the browser tests: one browser a module; where there is none they skip, and say what to do.

Not one for all: while Playwright is at work its event loop runs in this thread, and other tests run loops of their own.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.opening import Served, chromium, served
from tests.builders import make_service
from tests.chromium import find_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if isinstance(program, str):
        pytest.skip(program)
    with chromium(program) as found:
        yield found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve the demo fleet."""
    with served(make_service(tmp_path_factory.mktemp("certs"))) as found:
        yield found
