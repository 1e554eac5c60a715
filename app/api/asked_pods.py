# SPDX-License-Identifier: Apache-2.0
"""Reads the Pod of a scheduler's request; the pods of one template are read once.

kube-scheduler asks about one pod after another of a Job or a Deployment. Apart from their names they are the same
bytes, so that their containers, amounts and preferences need not be read and checked again, which takes longer than
the choice of a node (docs/benchmarks.md#http).
"""

from dataclasses import replace

import msgspec

from app.api.wire import ABSENT, DECODE_ERRORS, decode_asked_pod
from app.intree.soft_constraints import SoftConstraints
from app.kube.pod_limits import LONGEST_NAME
from app.kube.pods import Pod
from app.kube.token_volumes import TOKEN_VOLUME

TEMPLATES_KEPT = 64
LARGEST_KEPT_BYTES = 1 << 16
"""Bytes of the largest pod whose template is kept; those kept are 4 MiB at most."""
VOLUME_NAME, SUFFIX = f'"name":"{TOKEN_VOLUME}'.encode(), 5
"""The name of the volume of a service account's token, and the number of its last characters, which are random."""
AskedPod = tuple[Pod, SoftConstraints]


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: msgspec.Raw = ABSENT
    annotations: msgspec.Raw = ABSENT


class _Status(msgspec.Struct, rename="camel"):
    nominated_node_name: str | None = None


class _PodParts(msgspec.Struct):
    """A Pod whose own names are read; all that pods of one template have in common stays bytes."""

    metadata: _Metadata
    spec: msgspec.Raw = ABSENT
    status: _Status | None = None


_PARTS = msgspec.json.Decoder(_PodParts)


class AskedPods:
    """The templates of the last pods, at most TEMPLATES_KEPT of them."""

    def __init__(self) -> None:
        self._by_template: dict[bytes, AskedPod] = {}

    def read(self, raw: bytes | msgspec.Raw) -> AskedPod:
        """Read a Pod and its soft constraints, as `decode_asked_pod` does, with which tests compare it.

        Raises WireError 400.
        """
        body = bytes(raw)
        parts = _parts(body)
        if parts is None:
            return decode_asked_pod(body)
        template = _template(parts)
        known = self._by_template.get(template)
        if known is not None:
            return _named(known[0], parts), known[1]
        if len(self._by_template) >= TEMPLATES_KEPT:
            del self._by_template[next(iter(self._by_template))]
        asked = self._by_template[template] = decode_asked_pod(body)
        return asked


def _parts(body: bytes) -> _PodParts | None:
    """Return the parts of a pod; None for one that must be read whole, because it is large or may be refused.

    The decoder does not read members that it skips, so that only ASCII is sure to be valid UTF-8.
    """
    if len(body) > LARGEST_KEPT_BYTES or not body.isascii():
        return None
    try:
        parts: _PodParts = _PARTS.decode(body)
    except DECODE_ERRORS:
        return None
    metadata, status = parts.metadata, parts.status
    names = (metadata.name, metadata.generate_name, metadata.namespace, metadata.uid)
    nominated = status.nominated_node_name if status else None
    oversized = any(name and len(name) > LONGEST_NAME for name in (*names, nominated))
    return None if oversized else parts


def _template(parts: _PodParts) -> bytes:
    """Return the bytes that pods of one template share. The parts are JSON, so that a NUL byte separates them."""
    metadata, spec = parts.metadata, bytes(parts.spec)
    start = spec.find(VOLUME_NAME)
    if start >= 0:
        spec = spec.replace(spec[start : start + len(VOLUME_NAME) + SUFFIX], VOLUME_NAME)
    return b"\0".join((metadata.labels, metadata.annotations, spec))


def _named(pod: Pod, parts: _PodParts) -> Pod:
    """Return a pod of the same template with its own names."""
    metadata, status = parts.metadata, parts.status
    return replace(
        pod,
        name=metadata.name or metadata.generate_name or "",
        namespace=metadata.namespace or "default",
        uid=metadata.uid or "",
        nominated_node_name=(status.nominated_node_name if status else None) or None,
    )


read_asked = AskedPods().read
