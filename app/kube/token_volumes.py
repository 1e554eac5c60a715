# SPDX-License-Identifier: Apache-2.0
"""The volume of a service account's token, by whose name alone pods of one template differ."""

from collections.abc import Iterable, Mapping
from typing import Any

TOKEN_VOLUME = "kube-api-access-"
"""Prefix of the volume's name (kubernetes plugin/pkg/admission/serviceaccount/admission.go ServiceAccountVolumeName);
five random letters follow, others in each pod."""


def without_token_volumes(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a pod's volumes, or a container's mounts of them, without those of a service account's token."""
    return [item for item in items if not str(item.get("name", "")).startswith(TOKEN_VOLUME)]
