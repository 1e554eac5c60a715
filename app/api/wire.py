# SPDX-License-Identifier: Apache-2.0
"""The wire types, named as in Kubernetes, and the strict reading of request bodies.

Extender types are those of k8s.io/kube-scheduler extender/v1 types.go, which has no JSON tags: members have Go's field
names, and like Go we read them without regard to case. AdmissionReview is k8s.io/api admission/v1.

kube-scheduler asks about one pod after another of a Job or a Deployment. Apart from their names they are the same
bytes, so that `PodTemplates` reads those of one template once: their containers, amounts and preferences take longer
to read and check than the choice of a node (decision 33).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from app.intree.soft_constraints import SoftConstraints, read_soft_constraints
from app.kube.objects import NodeObject
from app.kube.pod_limits import LONGEST_NAME
from app.kube.pod_object import Owner, PodStatus, pod_object
from app.kube.pods import TOKEN_VOLUME, Pod, pod_of
from app.values.errors import MalformedPod, QuantityError, WireError

DECODE_ERRORS = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError)
"""All errors that msgspec raises on hostile bodies; UnicodeDecodeError is not a DecodeError
(docs/reference/measurements.md#hostile-json)."""


MOST_VALUES = 100_000
"""Commas, brackets and braces in a JSON body. A review of a Deployment with 1,000 containers of eight amounts and ten
variables holds 90,000 (old and new object); reading them takes at most 25 ms of CPU (measured)."""
VALUES_OF_NODE = 4_096
"""Commas of a whole Node in the bodies of a scheduler without node cache: five times those of recorded nodes."""
MOST_NAMES = 20_000
"""Most names of a request; twice the known nodes where that is more. Kubernetes supports 5,000 nodes, and prioritize
takes 30 ms for 20,000."""
ORDINARY = 1 << 18
"""Bytes. 5,000 names are 160 kB, most reviews 10 kB. Larger bodies are checked before they are read."""
LONGEST_NUMBER = 310
"""Digits in a row. The largest number of a double has 309; reading longer integers costs the square of their length."""
_LONG_NUMBER = b"9" * (LONGEST_NUMBER + 1)
_DIGITS = bytes(ord("9") if 48 <= byte < 58 else byte for byte in range(256))


class WireNodeList(msgspec.Struct):
    """A NodeList whose items stay bytes, because they are sent back as they came."""

    items: list[msgspec.Raw] | None = None


ABSENT = msgspec.Raw(b"null")


class ExtenderArgs(msgspec.Struct):
    """Body of filter and prioritize. `Pod` stays bytes: it comes in both, and is read once."""

    Pod: msgspec.Raw = ABSENT
    Nodes: WireNodeList | None = None
    NodeNames: list[str] | None = None


class PreemptionArgs(msgspec.Struct):
    """Body of preempt; victims stay as they came."""

    Pod: msgspec.Raw = ABSENT
    NodeNameToVictims: dict[str, dict[str, Any]] | None = None
    NodeNameToMetaVictims: dict[str, dict[str, Any]] | None = None


class HostPriority(msgspec.Struct, gc=False):
    """The score of a node: an integer, because a float would make Go reject the whole list.

    See docs/reference/control-plane.md#scores-of-the-scheduler.
    """

    Host: str
    Score: int


_EXTENDER = msgspec.json.Decoder(ExtenderArgs)
_PREEMPTION = msgspec.json.Decoder(PreemptionArgs, float_hook=float)
_NODE = msgspec.json.Decoder(NodeObject)
_ANY = msgspec.json.Decoder(Any, float_hook=float)
"""Reads fractions with Python's parser: msgspec's takes 14 µs for `1.7976931348623157e308`, 5 s for 8 MiB of them."""
encode = msgspec.json.Encoder().encode


def decode_json(body: bytes) -> Any:
    """Read JSON, unless it holds more values or longer numbers than any Kubernetes object.

    Raises WireError 400, and 413 for too many values.
    """
    check_values(body)
    try:
        return _ANY.decode(body)
    except DECODE_ERRORS as error:
        raise WireError(400, f"body: not JSON: {_short(error)}") from error


def check_values(body: bytes | msgspec.Raw) -> None:
    """Check the cost of reading a JSON text from its bytes alone, before it is read.

    Marks within strings count too; an object would need 100,000 commas in its strings to be refused for them.
    Raises WireError 413, and 400 for a number of too many digits.
    """
    if len(body) <= MOST_VALUES:
        return
    text = bytes(body)
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        remedy = f"wants at most {MOST_VALUES}: send a smaller object"
        raise WireError(413, f"body: too many values (commas, brackets, braces), {remedy}")
    if _LONG_NUMBER in text.translate(_DIGITS):
        raise WireError(400, f"body: more than {LONGEST_NUMBER} digits in a row, which no number of Kubernetes has")


def check_bulk(body: bytes, nodes: int) -> None:
    """Check the cost of reading a scheduler's request against the number of nodes in the fleet, before it is read.

    Raises WireError 413.
    """
    most = MOST_VALUES + VALUES_OF_NODE * nodes
    if len(body) > max(ORDINARY, most) and body.count(b",") > most:
        raise WireError(413, f"body: more than {most} values, wants at most that for {nodes} nodes")


def read_extender_request(body: bytes, nodes: int) -> tuple[ExtenderArgs, Pod, SoftConstraints]:
    """Read the body of filter or prioritize, and check its size against the number of nodes in the fleet.

    Raises WireError 400 and 413.
    """
    check_bulk(body, nodes)
    args = decode_extender_args(body)
    most = max(MOST_NAMES, 2 * nodes)
    if args.NodeNames is not None and len(args.NodeNames) > most:
        raise WireError(413, f"NodeNames: got {len(args.NodeNames)}, wants at most {most}")
    return args, *read_asked(args.Pod)


def decode_extender_args(body: bytes) -> ExtenderArgs:
    """Read the body of filter or prioritize, in any letter case of its keys.

    Raises WireError 400.
    """
    args: ExtenderArgs = _decode(_EXTENDER, body, ExtenderArgs)
    items_missing = args.Nodes is not None and args.Nodes.items is None
    if absent(args.Pod) or items_missing or (args.NodeNames is None and args.Nodes is None):
        args = _decode(_EXTENDER, _folded(body, ExtenderArgs), ExtenderArgs)
    if absent(args.Pod):
        raise WireError(400, "ExtenderArgs.Pod: got nothing, wants a Pod")
    if args.NodeNames is None and args.Nodes is None:
        raise WireError(400, "ExtenderArgs: got neither NodeNames nor Nodes, wants one of them")
    return args


def decode_preemption_args(body: bytes) -> PreemptionArgs:
    """Read the body of preempt, in any letter case of its keys.

    Raises WireError 400.
    """
    args: PreemptionArgs = _decode(_PREEMPTION, body, PreemptionArgs)
    if absent(args.Pod) or (args.NodeNameToVictims is None and args.NodeNameToMetaVictims is None):
        args = _decode(_PREEMPTION, _folded(body, PreemptionArgs), PreemptionArgs)
    if absent(args.Pod):
        raise WireError(400, "ExtenderPreemptionArgs.Pod: got nothing, wants a Pod")
    if args.NodeNameToVictims is None and args.NodeNameToMetaVictims is None:
        wants = "NodeNameToVictims or NodeNameToMetaVictims"
        raise WireError(400, f"ExtenderPreemptionArgs: got no candidates, wants {wants}")
    return args


def absent(raw: msgspec.Raw) -> bool:
    """Tell whether a member was absent or null."""
    return bytes(raw) == b"null"


def decode_asked_pod(raw: bytes) -> tuple[Pod, SoftConstraints]:
    """Read the Pod of a scheduler's request, and what it prefers without requiring it.

    Raises WireError 400.
    """
    document = decode_json(raw)
    if not isinstance(document, dict):
        raise WireError(400, "Pod: got no object, wants a Pod")
    try:
        pod = pod_object(document)
        return pod_of(pod), read_soft_constraints(pod)
    except (MalformedPod, QuantityError) as error:
        raise WireError(400, f"Pod: {error}") from error


def decode_node(raw: msgspec.Raw) -> NodeObject:
    """Read a whole Node. All of it must be UTF-8, because it is sent back and the decoder skips unread members.

    Raises WireError 400.
    """
    try:
        str(raw, "utf-8")
        node: NodeObject = _NODE.decode(raw)
        return node
    except DECODE_ERRORS as error:
        raise WireError(400, f"NodeShape: {_short(error)}") from error


def member_folded(victims: Mapping[str, Any], name: str) -> Any:
    """Return a member in any letter case of its key; None if it is absent."""
    if name in victims:
        return victims[name]
    return next((value for key, value in victims.items() if key.lower() == name.lower()), None)


def _decode(decoder: Any, body: bytes | msgspec.Raw, kind: type) -> Any:
    try:
        return decoder.decode(body)
    except DECODE_ERRORS as error:
        raise WireError(400, f"{kind.__name__}: {_short(error)}") from error


def _folded(body: bytes | msgspec.Raw, kind: type[msgspec.Struct]) -> bytes:
    """Rewrite the keys of a body and its NodeList in Go's letter case; the values stay bytes."""
    names = {name.lower(): name for name in kind.__struct_fields__}
    members: dict[str, msgspec.Raw] = _decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), body, kind)
    folded = {names.get(key.lower(), key): value for key, value in members.items()}
    if "Nodes" in folded and bytes(folded["Nodes"]).lstrip()[:1] == b"{":
        folded["Nodes"] = msgspec.Raw(_folded(folded["Nodes"], WireNodeList))
    return encode(folded)


def _short(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    return " ".join(str(error).split())[:200]


def status_body(code: int, message: str) -> bytes:
    """Return a Kubernetes Status for a failure; API server and scheduler log it in full."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    return encode({**status, "reason": _REASONS.get(code, "InternalError")})


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    431: "RequestHeaderFieldsTooLarge",
    503: "ServiceUnavailable",
}


TEMPLATES_KEPT = 64
LARGEST_KEPT_BYTES = 1 << 16
"""Bytes of the largest pod whose template is kept; those kept are 4 MiB at most."""
VOLUME_NAME, SUFFIX = f'"name":"{TOKEN_VOLUME}'.encode(), 5
"""The name of the volume of a service account's token, and the number of its last characters, which are random."""
ReadPod = tuple[Pod, SoftConstraints]


class _PodMetadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: msgspec.Raw = ABSENT
    annotations: msgspec.Raw = ABSENT
    owner_references: msgspec.Raw = ABSENT


class _PodParts(msgspec.Struct):
    """A Pod whose own names are read; all that pods of one template have in common stays bytes."""

    metadata: _PodMetadata
    spec: msgspec.Raw = ABSENT
    status: msgspec.Raw = ABSENT
    nominated: str | None = None


_PARTS = msgspec.json.Decoder(_PodParts)
_OWNERS = msgspec.json.Decoder(tuple[Owner, ...] | None)
_STATUS = msgspec.json.Decoder(PodStatus | None)


class PodTemplates:
    """The templates of the last pods, at most TEMPLATES_KEPT of them."""

    def __init__(self) -> None:
        self._by_template: dict[bytes, ReadPod] = {}

    def read(self, raw: bytes | msgspec.Raw) -> ReadPod:
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
        _OWNERS.decode(parts.metadata.owner_references)
        status: PodStatus | None = _STATUS.decode(parts.status)
    except DECODE_ERRORS:
        return None
    parts.nominated = status.nominated_node_name if status else None
    names = (parts.metadata.name, parts.metadata.generate_name, parts.metadata.namespace, parts.metadata.uid)
    return None if any(name and len(name) > LONGEST_NAME for name in names) else parts


def _template(parts: _PodParts) -> bytes:
    """Return the bytes that pods of one template share. The parts are JSON, so that a NUL byte separates them."""
    metadata, spec = parts.metadata, bytes(parts.spec)
    start = spec.find(VOLUME_NAME)
    if start >= 0:
        spec = spec.replace(spec[start : start + len(VOLUME_NAME) + SUFFIX], VOLUME_NAME)
    return b"\0".join((metadata.labels, metadata.annotations, spec))


def _named(pod: Pod, parts: _PodParts) -> Pod:
    """Return a pod of the same template with its own names."""
    metadata = parts.metadata
    return replace(
        pod,
        name=metadata.name or metadata.generate_name or "",
        namespace=metadata.namespace or "default",
        uid=metadata.uid or "",
        nominated_node_name=parts.nominated or None,
    )


read_asked = PodTemplates().read
