# SPDX-License-Identifier: Apache-2.0
"""One installation by README's install block, without operators, for all tests of what is installed."""

from collections.abc import Iterator

import pytest

from tests.realnodes.cluster import Cluster, state_folder
from tests.realnodes.printed_install import PrintedInstallation, forms


@pytest.fixture(scope="package")
def installation(cluster: Cluster) -> Iterator[PrintedInstallation]:
    state = state_folder()
    assert state is not None
    folder = state / "printed"
    folder.mkdir()
    made = PrintedInstallation(cluster, folder, forms()[0])
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def installed(installation: PrintedInstallation) -> PrintedInstallation:
    """Install it unless it is there, so that each test stands alone."""
    if not installation.pods():
        installation.install()
    installation.wait_until_admitting()
    return installation
