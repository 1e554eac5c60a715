# SPDX-License-Identifier: Apache-2.0
"""References to objects, as Events and owner references name them, and the controller that an object belongs to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.values.json_members import member


class ObjectReference(NamedTuple):
    """An object by its API version, kind, namespace, name and UID."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]


def controller_of(document: Mapping[str, Any]) -> ObjectReference | None:
    """Return the controller of an object, which is in the object's own namespace; None where it has none.

    Raises BadInput for metadata that no API server sends.
    """
    metadata = member(document, "metadata", dict, "") or {}
    namespace = metadata.get("namespace")
    for owner in member(metadata, "ownerReferences", list, "metadata.") or ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            fields = (owner.get("apiVersion"), owner.get("kind"), namespace, owner.get("name"), owner.get("uid"))
            texts = [field for field in fields if isinstance(field, str) and field]
            return ObjectReference(*texts) if len(texts) == len(fields) else None
    return None
