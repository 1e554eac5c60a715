# SPDX-License-Identifier: Apache-2.0
"""A live cluster looked over once, for the doctor: what cannot be read is noted, and the rest is read all the same."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from app.cluster.access import Load
from app.cluster.apiserver import ApiServer
from app.cluster.list_once import list_objects
from app.values.errors import ApiError

Object = dict[str, Any]
EVERYWHERE = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Namespace": "/api/v1/namespaces",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "/apis/resource.k8s.io/v1/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "GPUPolicy": "/apis/gpu-usher.io/v1alpha1/gpupolicies",
    "NodePool": "/apis/karpenter.sh/v1/nodepools",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
    "PyTorchJob": "/apis/kubeflow.org/v1/pytorchjobs",
    "RayCluster": "/apis/ray.io/v1/rayclusters",
    "WorkflowTemplate": "/apis/argoproj.io/v1alpha1/workflowtemplates",
}
"""By kind. What a cluster does not serve (404) is not there, and no finding."""
OURS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
}
"""Of our own namespace alone."""
SECRET = "gpu-usher-tls"
UNREACHABLE = "API server"


@dataclass(slots=True)
class ClusterObjects:
    """What was read, by kind; what was refused, with the API server's words. Filled while reading, then left alone.

    `ahead_seconds`: how far the API server's clock is ahead; None where it did not say. `rules`: resourceRules of our
    service account; None where refused. `certificate`: of the Secret gpu-usher-tls, PEM in base64;
    empty where there is none.
    """

    objects: dict[str, list[Object]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    reached: bool = True
    version: str = ""
    ahead_seconds: float | None = None
    rules: list[Object] | None = None
    certificate: str = ""


async def look_over(
    load: Load,
    namespace: str,
    now: Callable[[], dt.datetime],
    concerns: Callable[[Object], bool],
    say: Callable[[str], None] = lambda _: None,
) -> ClusterObjects:
    """Read all that the doctor looks at. An API server that does not answer is a survey with nothing in it.

    `concerns`: says of a pod whether to keep it; 50,000 whole pods are gigabytes. `say`: is told of each kind.
    """
    server, found = ApiServer(load), ClusterObjects()
    try:
        await _greet(server, found, now)
        if found.reached:
            served = await _groups(server, found)
            for kind, path in (EVERYWHERE | {kind: path.format(namespace) for kind, path in OURS.items()}).items():
                if served is not None and path.startswith("/apis/") and path.split("/")[2] not in served:
                    continue
                say(f"reading {path} of the cluster")
                await _list(server, found, kind, path, concerns if kind == "Pod" else None)
            say("asking for rights and the certificate")
            await _ask_rights(server, found, namespace)
            await _read_certificate(server, found, namespace)
    finally:
        await server.close()
    return found


async def _greet(server: ApiServer, found: ClusterObjects, now: Callable[[], dt.datetime]) -> None:
    asked = now()
    try:
        body, date = await server.version()
        found.version = str(msgspec.json.decode(body).get("gitVersion", ""))
    except ApiError as error:
        found.reached = error.status == 403  # who it is has answered; the rest may be allowed
        found.refused[UNREACHABLE] = str(error)
        return
    except (msgspec.DecodeError, AttributeError) as error:
        found.reached = False
        found.refused[UNREACHABLE] = f"/version: no Kubernetes API: {error}"
        return
    answered = now()
    try:
        # The header has whole seconds, cut off: half of one is the best guess.
        said = parsedate_to_datetime(date) + dt.timedelta(seconds=0.5)
        found.ahead_seconds = (said - asked - (answered - asked) / 2).total_seconds()
    except (ValueError, TypeError):
        found.refused["clock of the API server"] = "its answer has no Date header"


async def _groups(server: ApiServer, found: ClusterObjects) -> set[str] | None:
    """List the API groups that are served: what is not there may be refused with 403 as well. None if not known."""
    try:
        return {each["name"] for each in msgspec.json.decode(await server.get("/apis", {})).get("groups") or ()}
    except (ApiError, msgspec.DecodeError, KeyError) as error:
        found.refused["API groups"] = str(error)
        return None


async def _list(
    server: ApiServer, found: ClusterObjects, kind: str, path: str, keep: Callable[[Object], bool] | None
) -> None:
    try:
        found.objects[kind] = await list_objects(server, kind, path, keep)
    except ApiError as error:
        if error.status != 404:
            found.refused[kind] = str(error)


async def _ask_rights(server: ApiServer, found: ClusterObjects, namespace: str) -> None:
    user = f"system:serviceaccount:{namespace}:gpu-usher"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    try:
        status = msgspec.json.decode(await server.rules(user, groups, namespace)).get("status") or {}
    except (ApiError, msgspec.DecodeError) as error:
        found.refused[f"rights of ServiceAccount {namespace}/gpu-usher"] = str(error)
        return
    found.rules = status.get("resourceRules") or []
    if status.get("incomplete"):
        found.refused[f"rights of ServiceAccount {namespace}/gpu-usher"] = "an authorizer cannot list all rights"


async def _read_certificate(server: ApiServer, found: ClusterObjects, namespace: str) -> None:
    """Read what is served, and who signed it; the key that comes with it is let go at once."""
    path = f"/api/v1/namespaces/{namespace}/secrets/{SECRET}"
    try:
        data = msgspec.json.decode(await server.get(path, {})).get("data") or {}
    except (ApiError, msgspec.DecodeError) as error:
        if not (isinstance(error, ApiError) and error.status == 404):
            found.refused[f"Secret {namespace}/{SECRET}"] = str(error)
        return
    found.certificate = data.get("tls.crt", "")
