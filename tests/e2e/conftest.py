# SPDX-License-Identifier: Apache-2.0
"""One control plane a module: it starts in some four seconds, and no module sees another's leavings."""

from collections.abc import Iterator

import pytest

from tests.controlplane.binaries import Binaries, find_binaries
from tests.controlplane.cluster import ControlPlane, control_plane


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
