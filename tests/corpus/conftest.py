# SPDX-License-Identifier: Apache-2.0
"""One real API server for the corpus, without webhooks and without controllers: nothing is ever stored but names."""

from collections.abc import Iterator

import pytest

from tests.controlplane.binaries import find_binaries
from tests.controlplane.cluster import ControlPlane, control_plane
from tests.corpus.shapes import SHAPES


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """An API server that has the corpus's namespaces and the runtime class; skips, with the remedy, without one."""
    found = find_binaries()
    if isinstance(found, str):
        pytest.skip(found)
    with control_plane(found, controllers=False) as running:
        running.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        for name in {shape.namespace for shape in SHAPES.values()} - {"kube-system"}:
            running.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield running
