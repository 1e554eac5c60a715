# SPDX-License-Identifier: Apache-2.0
"""README's install block, run from its own text on real nodes beside both operators, and uninstalled as printed.

tests/realnodes/installed runs its other form. The chart with the same values makes the same objects (tests/deploy).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.processes import Process
from tests.e2e.stage import create_namespace, eventually
from tests.e2e.test_install import FOREIGN, define
from tests.neighbours.programs import find
from tests.neighbours.running import apply
from tests.realnodes.cluster import Cluster, state_folder
from tests.realnodes.installation import run_gpu_pod
from tests.realnodes.printed_install import PrintedInstallation, forms

MONITORING = {name: kind for name, kind in FOREIGN.items() if name.endswith("monitoring.coreos.com")}
POLICY = {
    "apiVersion": "gpu-usher.io/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "of-a-team"},
    "spec": {"match": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "nowhere"}}}},
}
DEFINITION = "CustomResourceDefinition <none> gpupolicies.gpu-usher.io"
OWNED = ("Pod ", "ReplicaSet ", "Endpoints ", "EndpointSlice ")
"""Kinds that the garbage collector deletes some time after their owners."""
SELF_SIGNED, OPERATORS = "deploy/overlays/production-self-signed", "deploy/overlays/production"


@contextmanager
def operators(plane: ControlPlane) -> Iterator[None]:
    """cert-manager, with its definitions, and the kinds of the Prometheus operator, for as long as the block lasts.

    The Prometheus operator itself does not run: nothing of the installation waits for it.
    """
    folder = find("cert-manager")
    if isinstance(folder, str):
        pytest.skip(folder)
    texts = (path.read_text("utf-8") for path in sorted((folder / "deploy" / "crds").glob("*.yaml")))
    documents = [yaml.safe_load(text) for text in texts]
    apply(plane, documents)
    define(plane, MONITORING)
    command = [str(folder / "cert-manager"), f"--kubeconfig={plane.kubeconfig('admin')}"]
    process = Process("cert-manager", command, plane.folder / "cert-manager.log")
    try:
        yield
    finally:
        process.stop()
        names = [*MONITORING, *(document["metadata"]["name"] for document in documents)]
        plane.kubectl("delete", "crd", "--wait=false", *names)


@contextmanager
def printed(cluster: Cluster, form: str) -> Iterator[PrintedInstallation]:
    """The installation of one form, which is not there yet; whatever a test leaves of it is removed."""
    state = state_folder()
    assert state is not None
    folder = state / form.rpartition("/")[2]
    folder.mkdir()
    made = PrintedInstallation(cluster, folder, form)
    try:
        yield made
    finally:
        made.close()


def left_behind(made: PrintedInstallation) -> set[str]:
    """List what is left once the garbage collector has followed."""
    eventually("nothing is being deleted", lambda: not [line for line in made.objects() if line.startswith(OWNED)])
    return {line for line in made.objects() if not line.startswith("APIService ")}


def test_block_offers_these_two_forms() -> None:
    """F114: what needs nothing but Kubernetes comes first; tests/realnodes/installed runs it."""
    assert forms() == [SELF_SIGNED, OPERATORS]


def test_block_installs_beside_both_operators_again_after_an_edit_and_keeps_the_policies(cluster: Cluster) -> None:
    """F1, F102, F114: the same commands are the upgrade, also after `kubectl edit` of what they own."""
    namespace = create_namespace(cluster.plane, "team-operators")
    with operators(cluster.plane), printed(cluster, OPERATORS) as made:
        made.install()
        run_gpu_pod(cluster, namespace)
        made.run("KUBE_EDITOR='sed -i s/maxSurge:.*/maxSurge:\\ 2/' kubectl -n gpu-usher edit deployment gpu-usher")
        made.install()
        assert cluster.plane.kubectl.create(POLICY).code == 0

        made.remove(keep_policies=True)

        kept = cluster.plane.kubectl("get", "gpupolicies", "-o", "name").out.split()
        assert kept == ["gpupolicy.gpu-usher.io/of-a-team"]
        assert left_behind(made) == {DEFINITION}
