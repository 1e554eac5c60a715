# SPDX-License-Identifier: Apache-2.0
"""Which namespaces are exempt from review, by their labels or names.

The API server leaves them out first, by the namespaceSelector in deploy/base/webhooks.yaml; `is_exempt` decides for a
request that comes nevertheless. Who may exempt a namespace is decided in exemption_guard.py.
"""

from collections.abc import Mapping

from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX

EXEMPT_LABELS = (PREFIX + "infrastructure", PREFIX + "ignore")
"""Namespace labels that exempt a namespace with the value "true". The same label on a pod never exempts."""


def is_exempt(namespace: str, labels: Mapping[str, str], knowledge: Knowledge) -> bool:
    """Tell whether a namespace is exempt, by its label or as vendor infrastructure by its name.

    See docs/reference/admission.md#exemptions.
    """
    return knowledge.families.is_infrastructure(namespace) or any(labels.get(key) == "true" for key in EXEMPT_LABELS)
