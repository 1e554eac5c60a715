# SPDX-License-Identifier: Apache-2.0
"""One control plane per module: it starts in about four seconds, and no module sees the objects of another."""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.controlplane.binaries import Binaries, find_binaries
from tests.controlplane.cluster import ControlPlane, control_plane
from tests.e2e.agreement import disagreements
from tests.e2e.stage import Service, create_namespace


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The programs of the control plane; the tests skip, with the remedy, where there are none."""
    programs = find_binaries()
    if isinstance(programs, str):
        pytest.skip(programs)
    return programs


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane for this module alone."""
    with control_plane(binaries) as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane, service: Service, request: pytest.FixtureRequest) -> str:
    """A namespace for this test alone, for which the webhooks of the module's service are called."""
    assert service.process.running
    return create_namespace(plane, f"{request.path.stem[5:].replace('_', '-')}-{crc32(request.node.name.encode()):08x}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    """After each scenario, before it is torn down, check that explain and scheduler agree on every pod (F83)."""
    yield
    plane = item.funcargs.get("plane")
    if isinstance(plane, ControlPlane) and plane.schedulers:
        services = [value for value in item.funcargs.values() if isinstance(value, Service)]
        folder = services[-1].flags.get("policies") if services else None
        assert disagreements(plane, Path(folder) if folder else None) == []
