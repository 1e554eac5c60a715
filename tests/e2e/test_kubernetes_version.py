# SPDX-License-Identifier: Apache-2.0
"""What the control plane under test offers, for the table of versions, and gpu-usher on one as it comes.

The other scenarios switch features of dynamic resource allocation on, where the version has them and leaves them off
(tests/controlplane/gates.py). Most clusters leave them off as well.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from app.kube.api_kinds import API_KINDS, DRA
from tests.controlplane.binaries import VARIABLES, Binaries
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.module_files import kubernetes_version
from tests.e2e.offers import (
    GROUP,
    dra_path,
    keeps_counters,
    keeps_counters_apart,
    keeps_extended_resources,
    served_versions,
)
from tests.e2e.stage import (
    Service,
    create_namespace,
    create_pod,
    gpu_pod,
    install_webhooks,
    serving,
    start_scheduler,
    wait_for_node,
)

OWN_GROUPS = ("", "apps", "node.k8s.io", "admissionregistration.k8s.io")
"""The API groups of Kubernetes that every cluster serves, of those that gpu-usher reads."""
Record = Callable[[str, str], None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Write a property of the test into the report in JUnit's XML, whatever its flavour (xunit2 warns of pytest's)."""
    return lambda name, value: request.node.user_properties.append((name, value))


class PlainControlPlane(ControlPlane):
    """A control plane with the features that are on by default."""

    gates = ()


@pytest.fixture(scope="module")
def plain(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane as it comes, with the webhooks of deploy/."""
    plane = PlainControlPlane(binaries, tmp_path_factory.mktemp("plain"))
    try:
        yield plane
    finally:
        plane.close()


@pytest.fixture(scope="module")
def service(plain: ControlPlane) -> Iterator[Service]:
    """The service on it, and its scheduler."""
    add_nodes(plain.api, [node_object("h100-0")])
    with serving(plain) as running:
        install_webhooks(plain, running)
        start_scheduler(plain, running)
        yield running


def offered(plane: ControlPlane) -> dict[str, str]:
    """Ask the API server what it offers of dynamic resource allocation."""
    versions = served_versions(plane, GROUP)
    questions = {
        "extendedResourceName of DeviceClass": keeps_extended_resources,
        "sharedCounters of ResourceSlice": keeps_counters,
        "counters in a slice of their own": keeps_counters_apart,
    }
    answers = {what: "yes" if asked(plane) else "no" for what, asked in questions.items()} if versions else {}
    return {f"versions of {GROUP}": ", ".join(versions) or "none", **answers}


@pytest.mark.skipif(
    any(map(os.environ.get, VARIABLES)),
    reason=f"{' or '.join(VARIABLES)} names programs of any version. Unset it to use `make controlplane`.",
)
def test_api_server_is_of_the_version_that_was_chosen(plane: ControlPlane, record: Record) -> None:
    """All that is said of a version rests on this."""
    version = plane.api.get("/version")["gitVersion"]
    record("version", version)

    assert version == kubernetes_version()


def test_every_kind_that_we_read_is_served_in_a_version_that_we_know(plane: ControlPlane) -> None:
    """F104: a kind that the API server no longer serves in that version would be missing without a word.

    DeviceTaintRules are served only where an administrator has switched them on.
    """
    for name, kind in API_KINDS.items():
        if name != "DeviceTaintRule" and (kind.group in OWN_GROUPS or name in DRA):
            answers = [plane.api.client.get(kind.path(version=version)).status_code for version in kind.versions]
            assert 200 in answers, name


def test_what_is_offered_is_told(plane: ControlPlane, plain: ControlPlane, record: Record) -> None:
    """The run of all versions writes the answers into its table (tests/kubernetes_versions.py)."""
    for prefix, control_plane in (("", plain), ("switched on: ", plane)):
        for what, answer in offered(control_plane).items():
            record(f"offer {prefix}{what}", answer)

    assert set(served_versions(plane, GROUP)) & set(API_KINDS["ResourceClaim"].versions)


def test_gpu_pod_is_admitted_and_placed_on_a_control_plane_as_it_comes(plain: ControlPlane, service: Service) -> None:
    """F104, F135: the service is ready whether or not DRA is served, and no cache of it is in trouble."""
    namespace = create_namespace(plain, "as-it-comes")

    created = create_pod(plain, gpu_pod("train", namespace))

    assert created["spec"]["tolerations"]
    assert wait_for_node(plain, created) == "h100-0"
    health = service.health()
    assert health["ready"]
    assert not any("error" in cache for cache in health["caches"].values())
    assert ("resourceslices" in health["caches"]) == bool(served_versions(plain, GROUP))


def test_claim_that_explain_proposes_can_be_created(plane: ControlPlane) -> None:
    """S13: it is written in the version of resource.k8s.io that this API server serves."""
    namespace = create_namespace(plane, "proposed")
    with serving(plane, "explaining") as running:
        template = running.explain(gpu_pod("train", namespace))["dra"]["template"]

    version = template["apiVersion"].rpartition("/")[2]
    answer = plane.api.try_create(f"/apis/{GROUP}/{version}/namespaces/{namespace}/resourceclaimtemplates", template)
    assert answer.status_code == 201, answer.text
    assert dra_path(plane).endswith(f"/{version}")
