# SPDX-License-Identifier: Apache-2.0
"""One real API server for the corpus, without webhooks and controllers. Only namespaces and a class are stored."""

from collections.abc import Iterator

import pytest

from tests.controlplane.binaries import find_binaries
from tests.controlplane.cluster import ControlPlane, control_plane
from tests.corpus.shapes import SHAPES


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Run an API server with the corpus's namespaces and the runtime class; skip with the remedy if there is none."""
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    with control_plane(binaries, controllers=False) as running:
        running.api.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        for name in {shape.namespace for shape in SHAPES.values()} - {"kube-system"}:
            running.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield running
