# SPDX-License-Identifier: Apache-2.0
"""The objects by which the API server's own admission refuses a pod: quotas, limit ranges, classes and accounts.

Each is declared once, and decoded by that declaration from a watch, a list or a snapshot. `AdmissionObjects` knows of
which kinds all objects are there: only of such a kind an object can be missing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.kube.objects import Namespace
from app.kube.records import KubeObject, Record
from app.values.json_members import JSONObject, object_if_any, objects_if_any

Quantities = dict[str, str | int | float] | None
"""Amounts by resource, as Kubernetes' JSON and YAML write them."""


class ScopeRequirement(Record, frozen=True):
    """One expression of a quota's scopeSelector (k8s.io/api core/v1 ScopedResourceSelectorRequirement)."""

    scope_name: str
    operator: str
    values: list[str] | None = None


class QuotaSpec(Record, frozen=True):
    """What a ResourceQuota limits, and the pods that it counts: those that match every scope."""

    hard: Quantities = None
    scopes: list[str] | None = None
    scope_selector: dict[str, list[ScopeRequirement] | None] | None = None

    def requirements(self) -> Iterator[ScopeRequirement]:
        """List the scopes of both forms (apiserver resourcequota controller.go getScopeSelectorsFromQuota)."""
        yield from (ScopeRequirement(scope, "Exists") for scope in self.scopes or ())
        yield from (self.scope_selector or {}).get("matchExpressions") or ()


class ResourceQuota(KubeObject, frozen=True):
    """A ResourceQuota; its status has what is enforced (`hard`) and what is `used`.

    Without a status, as in a file written by hand, its spec counts, and nothing as used.
    """

    spec: QuotaSpec = QuotaSpec()
    status: dict[str, Quantities] | None = None


class LimitRangeItem(Record, frozen=True):
    """The limits of one type, Container or Pod. Other types do not concern pods."""

    type: str
    min: Quantities = None
    max: Quantities = None
    default: Quantities = None
    default_request: Quantities = None
    max_limit_request_ratio: Quantities = None

    def defaults(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the default requests and limits of a container (pkg/apis/core/v1 SetDefaults_LimitRangeItem)."""
        limits = {**(self.max or {}), **(self.default or {})}
        requests = {**(self.min or {}), **limits, **(self.default_request or {})}
        return (requests, limits) if self.type == "Container" else ({}, {})


class LimitRangeSpec(Record, frozen=True):
    """The items of a LimitRange."""

    limits: tuple[LimitRangeItem, ...] | None = None


class LimitRange(KubeObject, frozen=True):
    """A LimitRange."""

    spec: LimitRangeSpec = LimitRangeSpec()


class PriorityClass(KubeObject, frozen=True):
    """A PriorityClass; pods that name none get the one that is the global default."""

    value: int = 0
    global_default: bool = False


ADMISSION_TYPES: Mapping[str, type[KubeObject]] = {
    "ResourceQuota": ResourceQuota,
    "LimitRange": LimitRange,
    "PriorityClass": PriorityClass,
    "ServiceAccount": KubeObject,
    "Namespace": Namespace,
}
"""By the kind as objects name it."""
ADMISSION_KINDS = tuple(kind for kind in ADMISSION_TYPES if kind != "Namespace")
"""Those that nothing else reads: a cluster may forbid them to us or to a user."""
LIMIT_KINDS = ("LimitRange", "ResourceQuota")
"""Those whose absence an explanation names: without them a pod that fits may still be refused."""


def refused_replicas(document: JSONObject) -> str:
    """Return why the API server refuses the pods of a Deployment or ReplicaSet, in its words; empty where it does not.

    Its controller writes the condition ReplicaFailure (pkg/controller/replicaset/replica_set_utils.go).
    """
    for condition in objects_if_any(object_if_any(document, "status"), "conditions"):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


class AdmissionObjects:
    """The objects by kind and key, namespace/name or name. `listed` are the kinds of which all are known."""

    def __init__(self, of: "AdmissionObjects | None" = None) -> None:
        self.by_kind: dict[str, dict[str, Any]] = {
            kind: dict(of.by_kind[kind]) if of else {} for kind in ADMISSION_TYPES
        }
        self.listed: set[str] = set(of.listed) if of else set()

    def put(self, kind: str, key: str, found: KubeObject) -> None:
        self.by_kind[kind][key] = found

    def drop(self, kind: str, key: str) -> None:
        self.by_kind[kind].pop(key, None)

    def inside(self, kind: str, namespace: str) -> list[tuple[str, Any]]:
        """List the objects of a kind in a namespace with their names, sorted."""
        start, found = f"{namespace}/", self.by_kind[kind]
        return [(key.removeprefix(start), found[key]) for key in sorted(found) if key.startswith(start)]
