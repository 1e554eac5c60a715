# SPDX-License-Identifier: Apache-2.0
"""The templates of pods that wait: what of a pod decides why it waits, so that pods of one template are explained once.

Its twin for the scheduler's calls is api/asked_pods.py, which compares bytes, and that for edits of policies is
explain/policy_diff.py, which also sets aside what only kube-scheduler reads.
"""

import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

from app.admission.match_conditions import CONTAINER_LISTS
from app.kube.pods import DECISION, PREFIX, VARIABLES
from app.kube.token_volumes import without_token_volumes

OWN_NAMES = ("hostname", "subdomain")
"""Fields of the spec in which a StatefulSet, an Indexed Job or a JobSet name the pod."""
RUN = ("command", "args")
"""Fields of a container that say what it runs, as each Job of a sweep does otherwise."""


def template_hash(document: Mapping[str, Any], label_keys: Collection[str]) -> str:
    """Return a hash of the part of a pod on which its cause depends; pods of one template share it.

    `label_keys` are the labels that policies match on (`policy_diff.label_keys`). Other labels need not be compared:
    those by which pods are spread or kept apart are in the spec as selectors, and the pods that a running service would
    hold against them are not known to it. Controllers write an index, a name or a UID of their own into many. Of
    annotations only ours decide. What is left of the spec is compared whole, so that an unforeseen field makes two
    templates of one, rather than one cause of two.
    """
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key in label_keys}
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key.startswith(PREFIX) and key != DECISION
    }
    parts = (metadata.get("namespace"), labels, annotations, _template_spec(spec))
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _template_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    template = {key: value for key, value in spec.items() if key not in OWN_NAMES}
    template["volumes"] = without_token_volumes(spec.get("volumes") or ())
    for name in CONTAINER_LISTS:
        template[name] = [_template_container(container) for container in spec.get(name) or ()]
    return template


def _template_container(container: Mapping[str, Any]) -> dict[str, Any]:
    template = {key: value for key, value in container.items() if key not in RUN}
    template["env"] = [
        variable for variable in container.get("env") or () if str(variable.get("name", "")).startswith(VARIABLES)
    ]
    template["volumeMounts"] = without_token_volumes(container.get("volumeMounts") or ())
    return template
