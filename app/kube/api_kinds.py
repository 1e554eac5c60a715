# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects that are watched, listed by commands and examined by the doctor, with their paths."""

from collections.abc import Mapping
from dataclasses import dataclass

EXPLAIN_GROUP, EXPLAIN_VERSION, EXPLANATIONS = "explain.gpu-usher.io", "v1alpha1", "explanations"
"""Our aggregated API (app/api/explain_api.py): its group, its version and its one resource."""
NAMESPACE = "gpu-usher"
"""The namespace of gpu-usher in deploy/base."""


@dataclass(frozen=True, slots=True)
class APIKind:
    """How the API server serves a kind.

    `group` is the API group, "" for the core group. `versions` are those that gpu-usher can read, the preferred first.
    `plural` is the name in paths and in RBAC rules. Of a kind that is `ours` only the objects in the namespace of
    gpu-usher are read.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    ours: bool = False

    @property
    def group_path(self) -> str:
        """The path at which the API server names the versions of the group."""
        return f"/apis/{self.group}" if self.group else "/api"

    def api_version(self, version: str) -> str:
        """Give the apiVersion that objects of the kind name in one of its versions."""
        return f"{self.group}/{version}" if self.group else version

    def path(self, namespace: str = NAMESPACE, version: str = "") -> str:
        """Give the path of the list; `namespace` is that of gpu-usher, and `version` the preferred one by default."""
        inside = f"/namespaces/{namespace}" if self.ours else ""
        return f"{self.group_path}/{version or self.versions[0]}{inside}/{self.plural}"


_V1 = ("v1",)
_DRA_GROUP, _DRA_VERSIONS = "resource.k8s.io", ("v1", "v1beta2", "v1beta1")
"""Dynamic resource allocation; its version v1 came with Kubernetes 1.34."""
_REGISTRATION = "admissionregistration.k8s.io"

API_KINDS: Mapping[str, APIKind] = {
    "Node": APIKind("", _V1, "nodes"),
    "Pod": APIKind("", _V1, "pods"),
    "Namespace": APIKind("", _V1, "namespaces"),
    "ConfigMap": APIKind("", _V1, "configmaps", ours=True),
    "ResourceQuota": APIKind("", _V1, "resourcequotas"),
    "LimitRange": APIKind("", _V1, "limitranges"),
    "ServiceAccount": APIKind("", _V1, "serviceaccounts"),
    "PriorityClass": APIKind("scheduling.k8s.io", _V1, "priorityclasses"),
    "PersistentVolume": APIKind("", _V1, "persistentvolumes"),
    "PersistentVolumeClaim": APIKind("", _V1, "persistentvolumeclaims"),
    "RuntimeClass": APIKind("node.k8s.io", _V1, "runtimeclasses"),
    "PodGroup": APIKind("scheduling.k8s.io", ("v1beta1", "v1alpha3", "v1alpha2"), "podgroups"),
    "DeviceClass": APIKind(_DRA_GROUP, _DRA_VERSIONS, "deviceclasses"),
    "ResourceSlice": APIKind(_DRA_GROUP, _DRA_VERSIONS, "resourceslices"),
    "ResourceClaim": APIKind(_DRA_GROUP, _DRA_VERSIONS, "resourceclaims"),
    "ResourceClaimTemplate": APIKind(_DRA_GROUP, _DRA_VERSIONS, "resourceclaimtemplates"),
    "DeviceTaintRule": APIKind(_DRA_GROUP, ("v1", "v1beta2", "v1alpha3"), "devicetaintrules"),
    "NodeResourceTopology": APIKind("topology.node.k8s.io", ("v1alpha2", "v1alpha1"), "noderesourcetopologies"),
    "GPUPolicy": APIKind("gpu-usher.io", ("v1alpha1", "v1beta1"), "gpupolicies"),  # stored as the first
    "Service": APIKind("", _V1, "services", ours=True),
    "EndpointSlice": APIKind("discovery.k8s.io", _V1, "endpointslices", ours=True),
    "Deployment": APIKind("apps", _V1, "deployments", ours=True),
    "DaemonSet": APIKind("apps", _V1, "daemonsets"),
    "PodDisruptionBudget": APIKind("policy", _V1, "poddisruptionbudgets"),
    "MutatingWebhookConfiguration": APIKind(_REGISTRATION, _V1, "mutatingwebhookconfigurations"),
    "ValidatingWebhookConfiguration": APIKind(_REGISTRATION, _V1, "validatingwebhookconfigurations"),
    "ValidatingAdmissionPolicy": APIKind(_REGISTRATION, _V1, "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": APIKind(_REGISTRATION, _V1, "validatingadmissionpolicybindings"),
    "APIService": APIKind("apiregistration.k8s.io", _V1, "apiservices"),
    "NodePool": APIKind("karpenter.sh", _V1, "nodepools"),
    "JobSet": APIKind("jobset.x-k8s.io", ("v1alpha2",), "jobsets"),
    "LeaderWorkerSet": APIKind("leaderworkerset.x-k8s.io", _V1, "leaderworkersets"),
    "PyTorchJob": APIKind("kubeflow.org", _V1, "pytorchjobs"),
    "RayCluster": APIKind("ray.io", _V1, "rayclusters"),
    "WorkflowTemplate": APIKind("argoproj.io", ("v1alpha1",), "workflowtemplates"),
}
"""By the kind as objects name it."""
FLEET = ("Node", "Pod", "Namespace", "RuntimeClass")
"""The kinds of every cluster that describe a fleet."""
DRA = tuple(name for name, kind in API_KINDS.items() if kind.group == _DRA_GROUP)
"""The kinds of dynamic resource allocation, which not every cluster serves; the last, DeviceTaintRule, only few do."""
