# SPDX-License-Identifier: Apache-2.0
"""One cluster with real nodes for all tests of the tier `nodes`, which runs in a sandbox (tests/tiers.py)."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.binaries import find_binaries
from tests.e2e.stage import (
    OURS,
    Service,
    create_namespace,
    install_webhooks,
    remove_webhooks,
    serving,
    start_scheduler,
)
from tests.realnodes import components, images, nvidia, sandbox
from tests.realnodes.cluster import Cluster, real_cluster, state_folder
from tests.realnodes.control_plane import NAMES
from tests.realnodes.installed_results import InstalledResults, kept_results
from tests.realnodes.results import Results
from tests.realnodes.worlds import make_world

TEAMS = itertools.count(1)
WORLDS = ("h100", "a100-mig-mixed", "a100-ts4-rename")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with three nodes: H100, A100 cut into MIG slices, and A100 of which each has four shares.

    Skips where it cannot run.
    """
    if state_folder() is None:
        pytest.skip(sandbox.missing() or "Real nodes run only in a sandbox of their own. Run `make e2e-nodes`.")
    binaries, programs, archives, built = find_binaries(), components.find_programs(), images.find(), nvidia.find()
    lacking = [why for why in (binaries, programs, archives, built) if isinstance(why, str)]
    if isinstance(binaries, str) or isinstance(archives, str) or isinstance(built, str) or lacking:
        pytest.skip(lacking[0])
    assert isinstance(archives, Path)
    worlds = [make_world(world, name) for world, name in zip(WORLDS, NAMES, strict=True)]
    with real_cluster(binaries, images.archives(archives), built, worlds) as running:
        yield running


@pytest.fixture(scope="session")
def installed_results() -> Iterator[InstalledResults]:
    """What the tests of installations measured; kept in tests/results where the run is asked to."""
    with kept_results() as results:
        yield results


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    """The rows of tests/results/real-nodes.md, which is written where this run has them all."""
    rows = Results()
    yield rows
    rows.write()


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Service]:
    """The service, its webhooks, and a scheduler that asks it."""
    with serving(cluster.plane) as running:
        install_webhooks(cluster.plane, running)
        start_scheduler(cluster.plane, running)
        yield running
        cluster.plane.stop(OURS)
        remove_webhooks(cluster.plane)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, service: Service) -> str:
    """A namespace of the module's own, whose pods the service completes."""
    assert service.ready()
    return create_namespace(cluster.plane, f"team-{next(TEAMS)}")
