# SPDX-License-Identifier: Apache-2.0
"""One control plane a module: it starts in some four seconds, and no module sees another's leavings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.binaries import Binaries, find_binaries
from tests.controlplane.cluster import ControlPlane, control_plane
from tests.e2e.agreement import disagreements
from tests.e2e.stage import Service


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The programs of the control plane; skips, with the remedy, where there are none."""
    found = find_binaries()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane of this module's own."""
    with control_plane(binaries) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    """After each scenario, before anything is taken down: explain agrees with the scheduler on every pod (F83)."""
    yield
    plane = item.funcargs.get("plane")
    if isinstance(plane, ControlPlane) and plane.schedulers:
        services = [each for each in item.funcargs.values() if isinstance(each, Service)]
        folder = services[-1].flags.get("policies") if services else None
        assert disagreements(plane, Path(folder) if folder else None) == []
