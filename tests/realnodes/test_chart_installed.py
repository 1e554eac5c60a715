# SPDX-License-Identifier: Apache-2.0
"""gpu-usher installed on real nodes by its Helm chart, upgraded under load, and removed."""

from collections.abc import Iterator

import pytest

from tests.deploy.tools import find_tool
from tests.e2e.stage import create_namespace, eventually
from tests.realnodes.admission_load import LIMITS, admissions
from tests.realnodes.chart import ChartInstallation
from tests.realnodes.cluster import Cluster, state_folder
from tests.realnodes.installation import UNINSTALL_SECONDS

LEFT = {
    "CustomResourceDefinition <none> gpupolicies.gpu-usher.io",
    "APIService <none> v1alpha1.gpu-usher.io",
    "APIService <none> v1beta1.gpu-usher.io",
    "Namespace <none> gpu-usher",
    "ConfigMap gpu-usher kube-root-ca.crt",
    "ServiceAccount gpu-usher default",
}
"""What stays of a release on purpose: the definition, with which all policies would go, and the namespace, which is
made beforehand, with what every namespace has."""

OWNED = ("Pod ", "ReplicaSet ", "Endpoints ", "EndpointSlice ")
"""Kinds that the garbage collector deletes some time after their owners."""


@pytest.fixture(scope="module")
def installation(cluster: Cluster) -> Iterator[ChartInstallation]:
    helm = find_tool("helm")
    if isinstance(helm, str):
        pytest.skip(helm)
    state = state_folder()
    assert state is not None
    folder = state / "chart"
    folder.mkdir()
    made = ChartInstallation(cluster, folder, helm)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def release(installation: ChartInstallation) -> ChartInstallation:
    """Install it unless it is there, so that each test stands alone."""
    if not installation.pods():
        installation.install()
    installation.wait_until_admitting()
    return installation


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    return create_namespace(cluster.plane, "team-chart")


def test_removed_release_leaves_only_what_it_says_and_refuses_no_pod(
    release: ChartInstallation, namespace: str
) -> None:
    """ADM-10, F115: pods that are valid by themselves are created without an error while it goes."""
    with admissions(release.plane, namespace, LIMITS) as stream:
        stream.go_on()
        release.remove_release()
        stream.go_on()

    assert stream.failures().keys() == {"bypassed"}
    left = "nothing is being deleted"
    eventually(left, lambda: not [each for each in release.objects() if each.startswith(OWNED)], UNINSTALL_SECONDS)
    assert set(release.objects()) == LEFT
