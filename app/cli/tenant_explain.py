# SPDX-License-Identifier: Apache-2.0
"""Asks the aggregated API for an explanation, where the user may not read nodes (app/api/explain_api.py)."""

from typing import Any

import msgspec

from app.cluster.kubeconfig import Load
from app.explain.explanation import Explanation
from app.kube.api_kinds import EXPLAIN_GROUP, EXPLAIN_VERSION, EXPLANATIONS
from app.tls.kube_objects import KubeClient
from app.values.errors import ApiError

FORBIDDEN = 403


def explained_by_api_server(load: Load, namespace: str, name: str, refused: ApiError) -> Explanation:
    """Return the explanation of a pod, after the API server has refused to show the cluster (`refused`).

    Raises ApiError: `refused` unless it is a 403, and where nobody answers, what to do.
    """
    if refused.status != FORBIDDEN:
        raise refused
    kube, path = KubeClient(load), f"/apis/{EXPLAIN_GROUP}/{EXPLAIN_VERSION}"
    try:
        document: Any = kube.read(f"{path}/namespaces/{namespace}/{EXPLANATIONS}/{name}")
        if document is not None:
            return msgspec.convert(document["explanation"], Explanation)
        reason = "the cluster does not serve explanations, or there is no such pod"
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        reason = "you may not get explanations either"
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise ApiError(None, f"explanation of {namespace}/{name}: of another version of gpu-usher: {error}") from error
    finally:
        kube.close()
    raise ApiError(
        FORBIDDEN,
        f"you may not read nodes, and {reason}: `kubectl describe pod {name} -n {namespace}` shows gpu-usher's Event; "
        "ask your platform team for ClusterRole gpu-usher-explain (deploy/components/explain-api)",
    ) from refused
