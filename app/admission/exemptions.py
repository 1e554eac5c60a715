# SPDX-License-Identifier: Apache-2.0
"""Who may exempt a namespace: a ValidatingAdmissionPolicy that guards our opt-out labels and the exempt names (F21).

A tenant who may create or label namespaces could else walk past every guard. The API server evaluates it itself: no
webhook on namespaces can hold up the cluster, and nothing is open while we are down. It asks RBAC for the verb `create`
on `exemptions.gpu-usher.io`, of the cluster, which nothing serves: `cluster-admin` has it, whatever group a cloud's
administrators are in; a role for namespaces, even one of wildcards in a namespace, does not.
"""

from typing import Any

from app.admission.match_conditions import quoted
from app.knowledge.families import Families
from app.kube.pods import PREFIX

NAME = "gpu-usher-exemptions"
EXEMPT_LABELS = (PREFIX + "infrastructure", PREFIX + "ignore")
"""Namespace labels; "true" exempts. A pod's own label never does (F21)."""
SUBRESOURCES = ("namespaces", "namespaces/finalize", "namespaces/status")
"""All of them take labels (pkg/registry/core/namespace/strategy.go: neither subresource resets metadata)."""
_VERSION = "admissionregistration.k8s.io/v1"


def exemption_policy(families: Families) -> list[dict[str, Any]]:
    """Write the policy and its binding."""
    keys = ", ".join(map(quoted, EXEMPT_LABELS))
    names = ", ".join(map(quoted, sorted(families.infrastructure_namespaces)))
    new = f"request.operation == 'CREATE' && object.metadata.name in [{names}]"
    labelled = f"[{keys}].exists(k, {_true('object')} && !(oldObject != null && {_true('oldObject')}))"
    allowed = "authorizer.group('gpu-usher.io').resource('exemptions').check('create').allowed()"
    message = f"gpu-usher: {' and '.join(EXEMPT_LABELS)} and the names of exempt namespaces are reserved"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": list(SUBRESOURCES),
                    "scope": "Cluster",
                }
            ],
        },
        "matchConditions": [{"name": "exempts", "expression": f"({new}) || {labelled}"}],
        "validations": [
            {
                "expression": allowed,
                "message": f"{message}: wants the right to create exemptions.gpu-usher.io",
                "reason": "Forbidden",
            }
        ],
    }
    binding = {"policyName": NAME, "validationActions": ["Deny"]}
    metadata = {"name": NAME, "labels": {"app.kubernetes.io/name": "gpu-usher"}}
    return [
        {"apiVersion": _VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": _VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


def _true(owner: str) -> str:
    """Ask whether a namespace has the label k with the value that exempts."""
    labels = f"{owner}.metadata.labels"
    return f"has({labels}) && k in {labels} && {labels}[k] == 'true'"
