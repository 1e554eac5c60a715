# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps and GPUPolicy objects, and reviews of their edits."""

import json
from typing import Any

from app.api.admission_routes import Reviewed
from app.server.service import Service
from tests.builders import review as wrap
from tests.finished import review

LABEL = {"gpu-usher.io/policy": "true"}
CONFIGMAPS = {"group": "", "version": "v1", "resource": "configmaps"}
GPUPOLICIES = {"group": "gpu-usher.io", "version": "v1alpha1", "resource": "gpupolicies"}


def config_map(data: Any, name: str = "policies", labels: Any = None, **metadata: Any) -> dict[str, Any]:
    """Make a ConfigMap with policies."""
    return {"metadata": {"name": name, "labels": LABEL if labels is None else labels, **metadata}, "data": data}


def gpu_policy(spec: Any, name: str = "mine", **metadata: Any) -> dict[str, Any]:
    """Make a GPUPolicy object as the API server sends it."""
    managed = {"uid": "u", "generation": 1, "managedFields": [{"manager": "kubectl"}], **metadata}
    return {
        "apiVersion": "gpu-usher.io/v1alpha1",
        "kind": "GPUPolicy",
        "metadata": {"name": name, **managed},
        "spec": spec,
    }


def ask(service: Service, document: Any, resource: dict[str, str], verb: str = "validate", **request: Any) -> Reviewed:
    """Review an object of our namespace."""
    members = {"namespace": "gpu-usher", "resource": resource, **request}
    return review(json.dumps(wrap(document, **members)).encode(), verb, service)


def denial_message(service: Service, document: Any, resource: dict[str, str], **request: Any) -> str:
    """Return the message of the denial, or an empty string if the object is allowed."""
    response = json.loads(ask(service, document, resource, **request).body)["response"]
    assert response["allowed"] is ("status" not in response)
    message: str = response.get("status", {}).get("message", "")
    return message
