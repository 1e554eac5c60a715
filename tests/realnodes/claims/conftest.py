# SPDX-License-Identifier: Apache-2.0
"""Nodes with a DRA driver for all tests of claims: to change their container runtime takes most of a minute."""

from collections.abc import Iterator, Mapping

import pytest

from tests.realnodes.claim_stage import nodes_with_containerd_2
from tests.realnodes.cluster import Cluster
from tests.realnodes.control_plane import NAMES
from tests.realnodes.node import Node


@pytest.fixture(scope="package")
def dra_nodes(cluster: Cluster) -> Iterator[Mapping[str, Node]]:
    """Nodes of which a DRA driver publishes the GPUs of two, and the device plugin those of the third."""
    with nodes_with_containerd_2(cluster, NAMES) as nodes:
        for name in NAMES[:2]:
            nodes[name].stop_device_plugin()
            nodes[name].start_dra_driver()
        yield nodes
