# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in a sandbox: the control plane, nodes with kubelets, and what is installed on them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.binaries import Binaries
from tests.realnodes.control_plane import NAMES, RealControlPlane
from tests.realnodes.images import PAUSE, SHELL
from tests.realnodes.node import Node
from tests.realnodes.sandbox import STATE
from tests.realnodes.toolkit import RUNTIME_CLASS, RUNTIME_CLASSES
from tests.realnodes.worlds import World


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running control plane, its nodes by name, and the OCI archives of all images by reference."""

    plane: RealControlPlane
    nodes: Mapping[str, Node]
    archives: Mapping[str, Path]


def state_folder() -> Path | None:
    """Give the folder that goes with the sandbox; None outside of one."""
    named = os.environ.get(STATE)
    return Path(named) if named else None


@contextmanager
def real_cluster(
    binaries: Binaries,
    archives: Mapping[str, Path],
    built: Path,
    worlds: Sequence[World],
    control_plane: type[RealControlPlane] = RealControlPlane,
) -> Iterator[Cluster]:
    """Run a cluster as long as the block lasts, with one node for each world, its device plugin and its labels.

    `built` has NVIDIA's components. The nodes get the small images only, because that of gpu-usher takes 600 MB of each
    one's memory.
    """
    state = state_folder()
    assert state is not None, "real nodes run in a sandbox: python -m tests.realnodes.sandbox COMMAND"
    folder = state / "control-plane"
    folder.mkdir()
    plane = control_plane(binaries, folder)
    named = zip(NAMES, worlds, strict=False)
    nodes = {name: Node(plane, name, number, state, world, built) for number, (name, world) in enumerate(named, 1)}
    plane.api.create(RUNTIME_CLASSES, RUNTIME_CLASS)
    with ExitStack() as stack:
        stack.callback(plane.close)
        for node in nodes.values():
            stack.callback(node.close)
            node.start([archives[PAUSE], archives[SHELL]])
        plane.start_labelling(built)
        for node in nodes.values():
            node.start_device_plugin()
            node.discover_features()
        yield Cluster(plane, nodes, archives)
