# SPDX-License-Identifier: Apache-2.0
"""Exempt namespaces: which ones are not reviewed, by their labels or names, and the right to exempt one.

The API server leaves them out first, by the namespaceSelector in deploy/base/webhooks.yaml; `is_exempt` decides for a
request that comes nevertheless.

A ValidatingAdmissionPolicy guards the opt-out labels and the exempt names. Without it a tenant who may create or label
namespaces could bypass every check. The API server evaluates the policy itself, so that no webhook on namespaces can
block the cluster and nothing is open while gpu-usher is down. The policy asks RBAC for the verb `create` on the
cluster-scoped resource `exemptions.gpu-usher.io`, which no API server serves. `cluster-admin` has that right, whichever
group a cloud's administrators are in; a Role, even with wildcards, does not.
"""

from collections.abc import Mapping
from typing import Any

from app.admission.match_conditions import quoted
from app.knowledge.gpu_resources import Families
from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX

EXEMPT_LABELS = (PREFIX + "infrastructure", PREFIX + "ignore")
"""Namespace labels that exempt a namespace with the value "true". The same label on a pod never exempts."""


def is_exempt(namespace: str, labels: Mapping[str, str], knowledge: Knowledge) -> bool:
    """Tell whether a namespace is exempt, by its label or as vendor infrastructure by its name.

    See docs/reference/admission.md#exemptions.
    """
    return knowledge.families.is_infrastructure(namespace) or any(labels.get(key) == "true" for key in EXEMPT_LABELS)


EXEMPTIONS_NAME = "gpu-usher-exemptions"
SUBRESOURCES = ("namespaces", "namespaces/finalize", "namespaces/status")
"""All of them accept changed labels (pkg/registry/core/namespace/strategy.go: no subresource resets metadata)."""
_VERSION = "admissionregistration.k8s.io/v1"


def exemption_policy(families: Families) -> list[dict[str, Any]]:
    """Write the ValidatingAdmissionPolicy and its ValidatingAdmissionPolicyBinding."""
    keys = ", ".join(map(quoted, EXEMPT_LABELS))
    names = ", ".join(map(quoted, sorted(families.infrastructure_namespaces)))
    new = f"request.operation == 'CREATE' && object.metadata.name in [{names}]"
    labelled = f"[{keys}].exists(k, {_exempting('object')} && !(oldObject != null && {_exempting('oldObject')}))"
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
    binding = {"policyName": EXEMPTIONS_NAME, "validationActions": ["Deny"]}
    metadata = {"name": EXEMPTIONS_NAME, "labels": {"app.kubernetes.io/name": "gpu-usher"}}
    return [
        {"apiVersion": _VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": _VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


def _exempting(owner: str) -> str:
    """Write the CEL expression that is true where a namespace has the label k with the value that exempts."""
    labels = f"{owner}.metadata.labels"
    return f"has({labels}) && k in {labels} && {labels}[k] == 'true'"
