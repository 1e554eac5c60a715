# SPDX-License-Identifier: Apache-2.0
"""Admission routes: AdmissionReview bytes in, AdmissionReview bytes out.

A review that cannot be read is HTTP 400; a denial is HTTP 200 with allowed false, since the body of any
other answer never reaches the user (docs/reference/control-plane.md#answers-to-the-api-server).
"""

import base64
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.admission.json_patch import apply
from app.admission.review import UNCONCERNED, ReviewContext, Verdict, denial_message, mutate, validate
from app.admission.review_targets import review_target_of
from app.api.backend import Backend
from app.api.policy_reviews import is_policy, judge_policy
from app.api.wire import DECODE_ERRORS, decode_json, encode
from app.kube.pod_limits import LONGEST_NAME
from app.values.errors import MalformedPod, OversizedPod, QuantityError, WireError
from app.values.json_members import member
from app.values.reasons import Code, reason
from app.values.steps import finish

Review = Callable[[Mapping[str, Any], str, Mapping[str, str], ReviewContext], Verdict]
V1 = "admission.k8s.io/v1"
REVIEWS: Mapping[str, Review] = {"mutate": mutate, "validate": validate}


@dataclass(frozen=True, slots=True)
class Reviewed:
    """An answer, and what the log and the metrics say of it. `handled`: of a kind and operation that is reviewed."""

    body: bytes
    verdict: Verdict
    handled: bool
    uid: str
    namespace: str
    name: str
    dry_run: bool


def review(body: bytes, verb: str, backend: Backend) -> Reviewed:
    """Answer one AdmissionReview at once. `verb`: mutate or validate.

    Raises WireError for what no API server sends.
    """
    return finish(review_steps(body, verb, backend))


def review_steps(body: bytes, verb: str, backend: Backend) -> Generator[None, None, Reviewed]:
    """Answer one AdmissionReview: a pod's in one step, a policy's in many.

    Raises WireError for what no API server sends.
    """
    try:
        request = read_envelope(decode_json(body))
    except WireError as error:
        if error.status != 413:
            raise
        return _refuse_unread(body, str(error), backend)
    namespace = _text(request, "namespace") or "default"
    try:
        verdict = yield from _judge(request, namespace, verb, backend)
    except (MalformedPod, QuantityError) as error:
        raise WireError(400, f"request.object: {error}") from error
    handled, verdict = verdict is not None, verdict or UNCONCERNED
    return Reviewed(
        body=encode(_answer(request["uid"], UNCONCERNED if backend.shadow else verdict)),
        verdict=verdict,
        handled=handled,
        uid=request["uid"],
        namespace=namespace,
        name=_text(request, "name") or _generate_name(request),
        dry_run=request.get("dryRun") is True,
    )


class _Asked(msgspec.Struct):
    """The part of an AdmissionRequest by which it is answered; the object is skipped unread."""

    uid: str
    namespace: str = "default"
    name: str = ""


class _Envelope(msgspec.Struct):
    """An AdmissionReview of which the object is not read."""

    request: _Asked


def _refuse_unread(body: bytes, problem: str, backend: Backend) -> Reviewed:
    """Deny a review of more values than are read: an HTTP error would let the object in under failurePolicy Ignore.

    Raises WireError 400.
    """
    try:
        asked = msgspec.json.decode(body, type=_Envelope).request
        read_envelope({"kind": "AdmissionReview", "apiVersion": V1, "request": msgspec.to_builtins(asked)})
    except DECODE_ERRORS as error:
        raise WireError(400, "body: wants an AdmissionReview object") from error
    verdict = Verdict(False, reasons=(reason(Code.ObjectTooLarge, problem),))
    answer = encode(_answer(asked.uid, UNCONCERNED if backend.shadow else verdict))
    return Reviewed(answer, verdict, True, asked.uid, asked.namespace, asked.name, dry_run=False)


def read_envelope(document: Any) -> Mapping[str, Any]:
    """Check an AdmissionReview's envelope; gives its request.

    Raises WireError 400.
    """
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise WireError(400, "body: wants an AdmissionReview object")
    version = document.get("apiVersion")
    if version != V1:
        remedy = "set admissionReviewVersions: [v1] in the webhook configuration"
        raise WireError(400, f"apiVersion: got {str(version)[:60]!r}, wants admission.k8s.io/v1: {remedy}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise WireError(400, "request: got nothing, wants an object")
    if not isinstance(request.get("uid"), str) or not request["uid"]:
        raise WireError(400, "request.uid: got nothing, wants a string")
    for key in ("uid", "namespace", "name"):  # what the log and the last decisions remember
        if isinstance(request.get(key), str) and len(request[key]) > LONGEST_NAME:
            raise WireError(400, f"request.{key}: got {len(request[key])} characters, wants at most {LONGEST_NAME}")
    return request


def _judge(
    request: Mapping[str, Any], namespace: str, verb: str, backend: Backend
) -> Generator[None, None, Verdict | None]:
    """Judge what a request is about; None for kinds and operations that are let through.

    The patch is applied here before it leaves: one that does not apply would reject the object even under
    failurePolicy Ignore (docs/reference/control-plane.md#answers-to-the-api-server).

    Raises MalformedPod, QuantityError; PatchError, a bug of ours.
    """
    if is_policy(request):
        return Verdict(False, reasons=(yield from judge_policy(request, backend))) if verb == "validate" else None
    subject = review_target_of(request)
    if subject is None:
        return None
    setting = replace(
        backend.setting(),
        form=subject.form,
        existing_ephemeral=subject.existing_ephemeral,
        old_template=subject.old_template,
    )
    try:
        verdict = REVIEWS[verb](subject.document, namespace, backend.namespace_labels(namespace), setting)
    except OversizedPod as error:
        return Verdict(True, reasons=(reason(Code.ObjectTooLarge, str(error)),))
    operations = tuple(map(subject.operation_on_object, verdict.operations))
    apply(request["object"], operations)
    return replace(verdict, operations=operations)


def _text(request: Mapping[str, Any], key: str) -> str | None:
    found: str | None = _member(request, key, str)
    return found


def _generate_name(request: Mapping[str, Any]) -> str:
    """Say what an object without a name is to be called by, for the log."""
    metadata = (_member(request, "object", dict) or {}).get("metadata")
    found = metadata.get("generateName") if isinstance(metadata, dict) else None
    return found[:LONGEST_NAME] if isinstance(found, str) else ""


def _member(request: Mapping[str, Any], key: str, kind: type) -> Any:
    try:
        return member(request, key, kind, "request.")
    except MalformedPod as error:
        raise WireError(400, str(error)) from error


def _answer(uid: str, verdict: Verdict) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed}
    if verdict.operations:
        patch = encode([operation.as_json() for operation in verdict.operations])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    if verdict.reasons:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": denial_message(verdict)}
    if verdict.concerned or verdict.reasons:
        response["auditAnnotations"] = _audit(verdict)
    return {"apiVersion": V1, "kind": "AdmissionReview", "response": response}


def _audit(verdict: Verdict) -> dict[str, str]:
    """Write the trail that lands in the API server's audit log; at most 256 bytes each (ADM-30)."""
    codes = ",".join(each.code.name for each in verdict.reasons)
    decision = codes or ("patched" if verdict.operations else "unchanged")
    return {
        "decision": decision[:256],
        "policies": ",".join(verdict.policies)[:256],
        "policy-hash": verdict.policy_hash[:12],
    }
