# SPDX-License-Identifier: Apache-2.0
"""Checks of who is exempt, and of doors that stand open: names to squat, labels that somebody put (F21)."""

from collections.abc import Iterator

from app.admission.exemptions import EXEMPT_LABELS, NAME, exemption_policy
from app.doctor.cluster_objects import Cluster, Object, advice, problem
from app.doctor.fleet_checks import Finding

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
ALWAYS_THERE = ("kube-system", "kube-public", "kube-node-lease")
"""Made by the API server itself, before anybody else can."""


def unguarded(cluster: Cluster) -> Iterator[Finding]:
    """Without the policy whoever may create or label namespaces walks past every guard."""
    if not (cluster.read(POLICY) and cluster.read(BINDING) and cluster.read("Namespace")):
        return
    if _in_force(cluster):
        return
    there = {_metadata(each).get("name") for each in cluster.listed("Namespace")}
    free = [each for each in cluster.knowledge.families.infrastructure_namespaces if each not in there]
    squat = f", or makes {' or '.join(free)}" if free else ""
    what = f"whoever may label a namespace exempts it by {' or '.join(EXEMPT_LABELS)}{squat}"
    yield problem("ExemptionsUnguarded", what, "apply deploy/base/exemptions.yaml", f"{POLICY} {NAME}")


def _in_force(cluster: Cluster) -> bool:
    """Tell whether the policy says what ours says, and a binding without conditions of its own denies."""
    wanted = exemption_policy(cluster.knowledge.families)[0]["spec"]
    specs = (each.get("spec") or {} for each in cluster.listed(POLICY) if _metadata(each).get("name") == NAME)
    bindings = (each.get("spec") or {} for each in cluster.listed(BINDING))
    says = any(
        all(_plain(spec.get(key)) == wanted[key] for key in ("matchConditions", "validations")) for spec in specs
    )
    return says and any(
        each.get("policyName") == NAME
        and "Deny" in (each.get("validationActions") or ())
        and not (each.get("matchResources") or {}).get("namespaceSelector")
        for each in bindings
    )


def _plain(found: object) -> object:
    """Fold blanks in expressions: how YAML breaks their lines says nothing."""
    if isinstance(found, list):
        return [_plain(each) for each in found]
    if isinstance(found, dict):
        return {key: " ".join(str(value).split()) for key, value in found.items()}
    return found


def labelled(cluster: Cluster) -> Iterator[Finding]:
    """A label that exempts was put by somebody: name whom the API server has on record."""
    for each in cluster.listed("Namespace"):
        labels = _metadata(each).get("labels") or {}
        for key in EXEMPT_LABELS:
            if labels.get(key) == "true":
                what = f"exempt by {key}, which was put by {_manager(each, key)}"
                remedy = "where that is not meant, remove the label"
                yield advice("ExemptByLabel", what, remedy, f"Namespace {_metadata(each).get('name')}")


def _manager(item: Object, key: str) -> str:
    """Say which client owns a label (metadata.managedFields), and when it wrote last."""
    for each in _metadata(item).get("managedFields") or ():
        fields = ((each.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
        if f"f:{key}" in fields:
            return f"{each.get('manager') or 'nobody on record'} ({each.get('time') or 'no time on record'})"
    return "nobody on record"


def squatted(cluster: Cluster) -> Iterator[Finding]:
    """A namespace that is exempt for its operands' sake, and runs none, may be somebody else's."""
    if not cluster.read("DaemonSet"):
        return
    running = {_metadata(each).get("namespace") for each in cluster.listed("DaemonSet")}
    names = set(cluster.knowledge.families.infrastructure_namespaces) - {*ALWAYS_THERE, cluster.namespace} - running
    for each in cluster.listed("Namespace"):
        if _metadata(each).get("name") in names:
            what = "exempt by its name, and runs no DaemonSet: whose is it?"
            remedy = "delete it, or have the operands run there"
            yield advice("ExemptWithoutOperands", what, remedy, f"Namespace {_metadata(each).get('name')}")


def _metadata(item: Object) -> Object:
    found: Object = item.get("metadata") or {}
    return found
