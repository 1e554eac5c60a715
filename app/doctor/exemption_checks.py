# SPDX-License-Identifier: Apache-2.0
"""Checks of exempt namespaces: whether the exemption policy is in force, and which namespaces are exempt."""

from collections.abc import Iterator

from app.admission.exemption_guard import NAME, exemption_policy
from app.admission.exemptions import EXEMPT_LABELS
from app.doctor.cluster_objects import APPLY, Cluster, Object, advice, problem
from app.doctor.fleet_checks import Finding

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
ALWAYS_THERE = ("kube-system", "kube-public", "kube-node-lease")
"""Namespaces that the API server creates itself, before any tenant can."""


def exemptions_unguarded(cluster: Cluster) -> Iterator[Finding]:
    """Report that the exemption policy is missing, so that tenants who may label namespaces can exempt them."""
    if not (cluster.could_read(POLICY) and cluster.could_read(BINDING) and cluster.could_read("Namespace")):
        return
    if _in_force(cluster):
        return
    existing = {_metadata(namespace).get("name") for namespace in cluster.objects_of("Namespace")}
    free = [name for name in cluster.knowledge.families.infrastructure_namespaces if name not in existing]
    squat = f", or by creating {' or '.join(free)}" if free else ""
    text = f"anyone who may label a namespace can exempt it with {' or '.join(EXEMPT_LABELS)}{squat}"
    yield problem("ExemptionsUnguarded", text, APPLY, f"{POLICY} {NAME}")


def _in_force(cluster: Cluster) -> bool:
    """Tell whether the cluster's policy has our conditions, and a binding without a namespace selector denies."""
    expected = exemption_policy(cluster.knowledge.families)[0]["spec"]
    specs = (policy.get("spec") or {} for policy in cluster.objects_of(POLICY) if _metadata(policy).get("name") == NAME)
    bindings = (binding.get("spec") or {} for binding in cluster.objects_of(BINDING))
    same_conditions = any(
        all(_fold_blanks(spec.get(key)) == expected[key] for key in ("matchConditions", "validations"))
        for spec in specs
    )
    return same_conditions and any(
        binding.get("policyName") == NAME
        and "Deny" in (binding.get("validationActions") or ())
        and not (binding.get("matchResources") or {}).get("namespaceSelector")
        for binding in bindings
    )


def _fold_blanks(value: object) -> object:
    """Fold blanks in expressions, since YAML may break their lines differently."""
    if isinstance(value, list):
        return [_fold_blanks(item) for item in value]
    if isinstance(value, dict):
        return {key: " ".join(str(text).split()) for key, text in value.items()}
    return value


def namespaces_exempt_by_label(cluster: Cluster) -> Iterator[Finding]:
    """Report namespaces with a label that exempts, and the client that wrote it (metadata.managedFields)."""
    for namespace in cluster.objects_of("Namespace"):
        labels = _metadata(namespace).get("labels") or {}
        for key in EXEMPT_LABELS:
            if labels.get(key) == "true":
                text = f"is exempt by its label {key}, written by {_manager(namespace, key)}"
                remedy = "if that is not intended, remove the label"
                yield advice("ExemptByLabel", text, remedy, f"Namespace {_metadata(namespace).get('name')}")


def _manager(item: Object, key: str) -> str:
    """Return which client owns a label (metadata.managedFields), and when it wrote last."""
    for entry in _metadata(item).get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
        if f"f:{key}" in fields:
            return f"{entry.get('manager') or 'an unknown client'} ({entry.get('time') or 'at an unknown time'})"
    return "an unknown client"


def namespaces_exempt_by_name(cluster: Cluster) -> Iterator[Finding]:
    """Report namespaces that are exempt by a vendor's name but run no DaemonSet: a tenant may have created them."""
    if not cluster.could_read("DaemonSet"):
        return
    running = {_metadata(daemon_set).get("namespace") for daemon_set in cluster.objects_of("DaemonSet")}
    names = set(cluster.knowledge.families.infrastructure_namespaces) - {*ALWAYS_THERE, cluster.namespace} - running
    for namespace in cluster.objects_of("Namespace"):
        if _metadata(namespace).get("name") in names:
            text = "is exempt by its name, and runs no DaemonSet of a GPU vendor"
            remedy = "find out whose it is; delete it if no GPU operands are to run there"
            yield advice("ExemptWithoutOperands", text, remedy, f"Namespace {_metadata(namespace).get('name')}")


def _metadata(item: Object) -> Object:
    metadata: Object = item.get("metadata") or {}
    return metadata
