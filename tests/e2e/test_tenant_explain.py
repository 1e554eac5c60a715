# SPDX-License-Identifier: Apache-2.0
"""A tenant asks kube-apiserver why his pod is Pending: real RBAC and front proxy, and attacks on what others have."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from typer.testing import CliRunner

from app.api.explain_api import API_VERSION
from app.cli.verbs import app
from app.tls.controller import API_SERVICE
from tests.authorities import make_authority, write_leaf
from tests.builders import policy
from tests.controlplane.binaries import Binaries
from tests.controlplane.cluster import CONTROLLERS, TOKENS, ControlPlane, control_plane
from tests.controlplane.fleet import add_nodes, kubelets, node_object
from tests.controlplane.front_proxy import CLUSTER_ROLES, FRONT_PROXY, FrontProxy
from tests.controlplane.kubectl import Kubectl, Object
from tests.controlplane.processes import free_port
from tests.e2e.stage import (
    DEPLOY,
    EXPLAIN_RIGHTS,
    Service,
    apply_files,
    create_namespace,
    create_pod,
    eventually,
    gpu_pod,
    install_explain_api,
    serving,
    start_scheduler,
    wait_for_node,
)

TEAM, OTHERS = "team", "secret-lab"
"""Everything of the other namespace has `secret` in its name."""
GPU = "nvidia.com/gpu"
README = (DEPLOY / "README.md").read_text("utf-8")
API = f"/apis/{API_VERSION}"
PATH = f"{API}/namespaces/{{}}/explanations/{{}}"
EXCEPTION = (
    "{match: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: secret-lab}}}, rules: [maxGPUsPerPod], "
    "owner: secret-owner, reason: secret-project, expires: 2099-01-31}"
)


class AggregatingControlPlane(FrontProxy, ControlPlane):
    """A control plane whose API server passes requests on with the certificate of a front proxy."""

    tokens = MappingProxyType({**TOKENS, "tina": ("tina", "tenants"), "nobody": ("nobody", "tenants")})
    controllers = (*CONTROLLERS, CLUSTER_ROLES)


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane with an aggregation layer, for this module alone."""
    with control_plane(binaries, make=AggregatingControlPlane) as running:
        yield running


@pytest.fixture(scope="module")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service behind the aggregated API, and a pod of the tenant that waits for the GPUs of another's."""
    add_nodes(plane.api, [node_object("h100", offers={GPU: 2}), node_object("t4", "Tesla-T4", "470.82.01", {GPU: 4})])
    policies = tmp_path_factory.mktemp("policies")
    (policies / "default.yaml").write_text(
        policy("default", f"admission: {{affinity: {{mode: 'Off'}}, maxGPUsPerPod: 8}}, exceptions: [{EXCEPTION}]"),
        "utf-8",
    )
    apply_files(plane, EXPLAIN_RIGHTS)
    port = free_port()
    with (
        serving(plane, explain_address=f"127.0.0.1:{port}", policies=str(policies)) as running,
        kubelets(plane.api),
    ):
        start_scheduler(plane, running)
        install_explain_api(plane, running, port)
        create_namespace(plane, OTHERS)
        create_namespace(plane, TEAM)
        holder = gpu_pod("secret-holder", OTHERS, {GPU: 2}, annotations={"products": "H100"})
        create_pod(plane, holder)
        wait_for_node(plane, holder)
        create_pod(plane, gpu_pod("waits", TEAM, {GPU: 2}, annotations={"products": "H100"}))
        bound = plane.kubectl("create", "rolebinding", "tina", "--clusterrole=view", "--user=tina", "-n", TEAM)
        assert bound.code == 0, bound.err
        eventually("the tenant is answered", lambda: ask(plane, "tina", PATH.format(TEAM, "waits"))[0] == 200)
        yield running


def ask(
    plane: ControlPlane, user: str, path: str, method: str = "GET", headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, Object]:
    """Ask kube-apiserver with the path exactly as written, and return the status and the body."""
    context = ssl.create_default_context(cafile=str(plane.ca))
    connection = http.client.HTTPSConnection(plane.address, plane.port, context=context, timeout=30)
    connection.request(method, path, headers={"Authorization": f"Bearer {user}-token", **headers})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text or b"{}") if text[:1] in (b"{", b"") else {"text": text.decode()}


def ask_directly(service: Service, folder: Path | None, path: str, **headers: str) -> int:
    """Ask the listener itself with the certificate of a folder, and return the status.

    Raises OSError where the TLS handshake fails; the client learns of it at its first read.
    """
    context = ssl.create_default_context(cafile=str(service.ca))
    if folder is not None:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    port = int(service.flags["explain-address"].rpartition(":")[2])
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    try:
        connection.request("GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


def test_tenant_reads_why_his_pod_waits_and_nothing_of_others_but_counts(plane: ControlPlane, service: Service) -> None:
    """F83, F104: with ClusterRole view in one namespace."""
    code, answer = ask(plane, "tina", PATH.format(TEAM, "waits"))

    explanation = answer["explanation"]
    assert (code, answer["kind"], answer["metadata"]) == (200, "Explanation", {"name": "waits", "namespace": TEAM})
    assert (explanation["fits"], explanation["nodes"]) == (0, 2)
    assert explanation["primary"]["reason"] == "InsufficientGPUs"
    assert "its on none of 2 nodes" in answer["cause"]
    assert "secret" not in json.dumps(answer)
    assert any("of other namespaces" in edit["text"] for fix in explanation["fixes"] for edit in fix["edits"])
    full = service.explain({"namespace": TEAM, "name": "waits"})
    assert "secret" in json.dumps(full)  # what the page shows to whoever may forward its port
    assert explanation["refused"] == full["refused"]
    assert explanation["funnel"] == full["funnel"]


@pytest.mark.usefixtures("service")
def test_kubectl_alone_shows_the_cause(plane: ControlPlane, binaries: Binaries) -> None:
    """F83: discovery names the resource, and the answer is a table with the cause."""
    kubectl = Kubectl(binaries.command("kubectl"), plane.kubeconfig("tina"))

    shown = kubectl("get", "explanation", "waits", "-n", TEAM)
    may = kubectl("auth", "can-i", "get", "explanations.explain.gpu-usher.io", "-n", TEAM)
    document = kubectl("get", "explanations", "waits", "-n", TEAM, "-o", "yaml")

    assert shown.code == 0, shown.err
    assert "InsufficientGPUs" in shown.out
    assert "its on none of 2 nodes" in shown.out
    assert may.out.strip() == "yes"
    assert yaml.safe_load(document.out)["kind"] == "Explanation"


@pytest.mark.usefixtures("service")
def test_command_line_asks_the_api_where_the_user_may_not_read_nodes(plane: ControlPlane) -> None:
    """F82, F83: and says where the Event is, and which ClusterRole to ask for, to who may not even do that."""
    answered, refused = (
        CliRunner().invoke(app, ["explain", f"{TEAM}/waits", "--kubeconfig", str(plane.kubeconfig(user)), "-o", "json"])
        for user in ("tina", "nobody")
    )

    assert answered.exit_code == 1, answered.output
    assert json.loads(answered.stdout)["primary"]["reason"] == "InsufficientGPUs"
    message = str(refused.exception) + refused.output
    assert f"kubectl describe pod waits -n {TEAM}" in message
    assert "ClusterRole gpu-usher-explain" in message


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("user", "path", "headers", "code"),
    [
        pytest.param("tina", PATH.format(OTHERS, "secret-holder"), {}, 403, id="another namespace"),
        pytest.param("nobody", PATH.format(TEAM, "waits"), {}, 403, id="no right"),
        pytest.param("tina", PATH.format(TEAM, "absent"), {}, 404, id="no such pod"),
        pytest.param("tina", PATH.format(TEAM, "secret-holder"), {}, 404, id="another's name in one's own namespace"),
        pytest.param("tina", f"{API}/namespaces/{TEAM}/explanations", {}, 200, id="the list of one's namespace"),
        pytest.param("tina", f"{API}/namespaces/{OTHERS}/explanations", {}, 403, id="the list of another"),
        pytest.param("tina", f"{API}/explanations", {}, 403, id="a list of all namespaces"),
        pytest.param("tina", f"{API}/namespaces/{TEAM}/explanations?watch=true", {}, 403, id="a watch"),
        pytest.param("tina", PATH.format(TEAM, "waits/status"), {}, 403, id="a subresource"),
        pytest.param("admin", PATH.format(TEAM, "waits/status"), {}, 404, id="a subresource that nobody has"),
        pytest.param("tina", PATH.format(OTHERS, "secret-holder"), {"X-Remote-User": "admin"}, 403, id="a forged user"),
        pytest.param(
            "tina", PATH.format(OTHERS, "secret-holder"), {"X-Remote-Group": "system:masters"}, 403, id="a forged group"
        ),
        pytest.param(
            "tina", PATH.format(OTHERS, "secret-holder"), {"Impersonate-User": "admin"}, 403, id="impersonates"
        ),
        pytest.param("admin", PATH.format(TEAM, "waits"), {"Impersonate-User": "tina"}, 200, id="impersonated"),
        pytest.param(
            "admin",
            PATH.format(OTHERS, "secret-holder"),
            {"Impersonate-User": "tina"},
            403,
            id="impersonated, elsewhere",
        ),
    ],
)
def test_rbac_of_the_api_server_decides_who_is_answered(
    plane: ControlPlane, user: str, path: str, headers: dict[str, str], code: int
) -> None:
    """F104: all kinds of users, by what they may in the pod's namespace."""
    status, answer = ask(plane, user, path, headers=headers)

    assert status == code, answer
    assert code == 200 or answer["kind"] == "Status"


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    "trick",
    [
        f"../../{OTHERS}/explanations/secret-holder",
        f"%2e%2e/%2e%2e/{OTHERS}/explanations/secret-holder",
        f"..%2f..%2f{OTHERS}%2fexplanations%2fsecret-holder",
        f"waits%2f..%2f..%2f..%2f{OTHERS}%2fexplanations%2fsecret-holder",
        f"waits%00{OTHERS}",
        f"waits?namespace={OTHERS}&name=secret-holder&nodes=true&fieldSelector=metadata.name%3Dsecret-holder",
        f"waits;/../../{OTHERS}/explanations/secret-holder",
        f"//{OTHERS}/explanations/secret-holder",
    ],
)
def test_path_and_query_tricks_lead_to_nothing_of_others(plane: ControlPlane, trick: str) -> None:
    """F104: also for who may read everything, an answer is about the pod of the namespace that RBAC was asked about."""
    for user in ("tina", "admin"):
        _, answer = ask(plane, user, f"{API}/namespaces/{TEAM}/explanations/{trick}")
        name = answer.get("metadata", {}).get("name")

        assert name in (None, "waits") or user == "admin", answer
        assert answer["kind"] == "Status" or answer["metadata"]["namespace"] == TEAM or user == "admin"
        assert user == "admin" or answer.get("code", 200) in (200, 400, 403, 404)
        if user == "tina" and answer["kind"] != "Status":
            assert "secret" not in json.dumps(answer)


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_api_takes_no_verb_but_get(plane: ControlPlane, method: str) -> None:
    """F104: RBAC refuses the tenant, and the service refuses whoever may do everything."""
    path = PATH.format(TEAM, "waits")

    assert ask(plane, "tina", path, method)[0] == 403
    assert ask(plane, "admin", path, method)[0] == 405


def test_nobody_but_the_front_proxy_is_answered_by_the_listener(
    plane: ControlPlane, service: Service, tmp_path: Path
) -> None:
    """F104: X-Remote-User counts only with the certificate of the front proxy."""
    assert isinstance(plane, AggregatingControlPlane)
    stranger, other_name = tmp_path / "stranger", tmp_path / "other-name"
    for folder in (stranger, other_name):
        folder.mkdir()
    write_leaf(make_authority("front proxy CA"), stranger, FRONT_PROXY)
    write_leaf(plane.authority, other_name, "somebody")
    path = PATH.format(TEAM, "waits")

    for shown in (None, stranger):
        with pytest.raises((OSError, http.client.HTTPException)):
            ask_directly(service, shown, path, X_Remote_User="admin")
    assert ask_directly(service, other_name, path, X_Remote_User="admin") == 403
    assert ask_directly(service, plane.folder / "front-proxy", path) == 401
    assert ask_directly(service, plane.folder / "front-proxy", path, X_Remote_User="tina") == 200


def api_is_available(plane: ControlPlane) -> bool:
    api_service = plane.api.get(API_SERVICE)
    return any(
        (condition["type"], condition["status"]) == ("Available", "True")
        for condition in api_service["status"]["conditions"]
    )


def is_gone(plane: ControlPlane, namespace: str) -> bool:
    return plane.api.client.get(f"/api/v1/namespaces/{namespace}").status_code == 404


def test_deletion_of_a_namespace_waits_for_the_api_and_the_emergency_line_ends_that(
    plane: ControlPlane, service: Service
) -> None:
    """ADM-10: why the component is not in `production`; the line is the one of deploy/README."""
    document = plane.api.get(API_SERVICE)
    assert api_is_available(plane)
    for name in ("while-served", "while-away"):
        create_namespace(plane, name)
    plane.api.delete("/api/v1/namespaces/while-served")
    eventually("it is gone", lambda: is_gone(plane, "while-served"))
    service.process.stop()
    try:
        eventually("the API is not available", lambda: not api_is_available(plane))
        plane.api.delete("/api/v1/namespaces/while-away")
        eventually("the deletion waits for discovery", lambda: "DiscoveryFailed" in conditions_of(plane, "while-away"))
        line = next(line for line in README.splitlines() if line.startswith("$ kubectl delete apiservice"))

        result = plane.kubectl(*line.split()[2:])

        assert result.code == 0, result.err
        eventually("it is gone", lambda: is_gone(plane, "while-away"))
    finally:
        service.restart()
        written = {"metadata": {"name": document["metadata"]["name"]}, "spec": document["spec"]}
        plane.api.try_create("/apis/apiregistration.k8s.io/v1/apiservices", written)
        eventually("the tenant is answered", lambda: ask(plane, "tina", PATH.format(TEAM, "waits"))[0] == 200)


def conditions_of(plane: ControlPlane, namespace: str) -> str:
    """Return the text of the conditions of a namespace that is being deleted."""
    return json.dumps(plane.api.get(f"/api/v1/namespaces/{namespace}")["status"].get("conditions", []))
