# SPDX-License-Identifier: Apache-2.0
"""The admission routes: read an AdmissionReview, have it reviewed, and write the answer.

A review that cannot be read gets HTTP 400. A denial is HTTP 200 with `allowed: false`, because the API server does not
show the body of any other answer to the user (docs/reference/control-plane.md#answers-to-the-api-server).
"""

import base64
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.admission.review import UNCONCERNED, ReviewResult, denial_message, limited_warnings, mutate, validate
from app.admission.review_targets import ignored_annotations, review_target_of
from app.admission.reviewed_pod import ReviewContext
from app.api.backend import Backend
from app.api.policy_reviews import is_policy, judge_policy
from app.api.wire import DECODE_ERRORS, decode_json, encode
from app.kube.pod_limits import LONGEST_NAME
from app.values.computations import finish
from app.values.errors import MalformedPod, OversizedPod, QuantityError, WireError
from app.values.json_members import member
from app.values.reasons import Code, reason

Review = Callable[[Mapping[str, Any], str, Mapping[str, str], ReviewContext], ReviewResult]
V1 = "admission.k8s.io/v1"
REVIEWS: Mapping[str, Review] = {"mutate": mutate, "validate": validate}


@dataclass(frozen=True, slots=True)
class Reviewed:
    """An answer, and what the log and the metrics need. `handled` is whether this kind and operation is reviewed.

    `request` is the AdmissionRequest; None for one with too many values, which is not read.
    """

    body: bytes
    result: ReviewResult
    handled: bool
    uid: str
    namespace: str
    name: str
    dry_run: bool
    request: Mapping[str, Any] | None = None


def review(body: bytes, verb: str, backend: Backend) -> Reviewed:
    """Answer one AdmissionReview in one step. `verb` is mutate or validate.

    Raises WireError for a body that no API server sends.
    """
    return finish(review_steps(body, verb, backend))


def review_steps(body: bytes, verb: str, backend: Backend) -> Generator[None, None, Reviewed]:
    """Answer one AdmissionReview: one of a pod in one step, one of a policy in many.

    Raises WireError for a body that no API server sends.
    """
    try:
        request = read_envelope(decode_json(body))
    except WireError as error:
        if error.status != 413:
            raise
        return _deny_oversized(body, str(error), backend)
    namespace = _text(request, "namespace") or "default"
    try:
        result = yield from _review_object(request, namespace, verb, backend)
    except (MalformedPod, QuantityError) as error:
        raise WireError(400, f"request.object: {error}") from error
    handled, result = result is not None, result or UNCONCERNED
    return Reviewed(
        body=encode(_answer(request["uid"], UNCONCERNED if backend.shadow else result)),
        result=result,
        handled=handled,
        uid=request["uid"],
        namespace=namespace,
        name=_text(request, "name") or _generate_name(request),
        dry_run=request.get("dryRun") is True,
        request=request,
    )


class _RequestIdentity(msgspec.Struct):
    """The part of an AdmissionRequest that the answer needs; the object is skipped."""

    uid: str
    namespace: str = "default"
    name: str = ""


class _Envelope(msgspec.Struct):
    """An AdmissionReview without its object."""

    request: _RequestIdentity


def _deny_oversized(body: bytes, problem: str, backend: Backend) -> Reviewed:
    """Deny a review with too many values: under failurePolicy Ignore an HTTP error would let the object in.

    Raises WireError 400.
    """
    try:
        identity = msgspec.json.decode(body, type=_Envelope).request
        read_envelope({"kind": "AdmissionReview", "apiVersion": V1, "request": msgspec.to_builtins(identity)})
    except DECODE_ERRORS as error:
        raise WireError(400, "body: wants an AdmissionReview object") from error
    result = ReviewResult(False, reasons=(reason(Code.ObjectTooLarge, problem),))
    answer = encode(_answer(identity.uid, UNCONCERNED if backend.shadow else result))
    return Reviewed(answer, result, True, identity.uid, identity.namespace, identity.name, dry_run=False)


def read_envelope(document: Any) -> Mapping[str, Any]:
    """Check the envelope of an AdmissionReview and return its request.

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
    for key in ("uid", "namespace", "name"):  # the log and the recent decisions hold these
        if isinstance(request.get(key), str) and len(request[key]) > LONGEST_NAME:
            raise WireError(400, f"request.{key}: got {len(request[key])} characters, wants at most {LONGEST_NAME}")
    return request


def _review_object(
    request: Mapping[str, Any], namespace: str, verb: str, backend: Backend
) -> Generator[None, None, ReviewResult | None]:
    """Review the object of a request; None for kinds and operations that are not reviewed.

    Raises MalformedPod, QuantityError, and PatchError for a bug of ours.
    """
    if is_policy(request):
        return (yield from judge_policy(request, backend)) if verb == "validate" else None
    subject = review_target_of(request)
    ignored = ignored_annotations(request) if verb == "mutate" else ()
    if subject is None:
        return ReviewResult(True, warnings=ignored) if ignored else None
    context = replace(
        backend.review_context(),
        form=subject.form,
        existing_ephemeral=subject.existing_ephemeral,
        old_template=subject.old_template,
    )
    try:
        result = REVIEWS[verb](subject.document, namespace, backend.namespace_labels(namespace), context)
    except OversizedPod as error:
        return ReviewResult(True, reasons=(reason(Code.ObjectTooLarge, str(error)),))
    operations = tuple(map(subject.operation_on_object, result.operations))
    warnings = limited_warnings((*ignored, *result.warnings)) if ignored else result.warnings
    return replace(result, concerned=result.concerned or bool(ignored), operations=operations, warnings=warnings)


def _text(request: Mapping[str, Any], key: str) -> str | None:
    text: str | None = _member(request, key, str)
    return text


def _generate_name(request: Mapping[str, Any]) -> str:
    """Return the generateName of an object, which the log shows if it has no name."""
    metadata = (_member(request, "object", dict) or {}).get("metadata")
    generate_name = metadata.get("generateName") if isinstance(metadata, dict) else None
    return generate_name[:LONGEST_NAME] if isinstance(generate_name, str) else ""


def _member(request: Mapping[str, Any], key: str, kind: type) -> Any:
    try:
        return member(request, key, kind, "request.")
    except MalformedPod as error:
        raise WireError(400, str(error)) from error


def _answer(uid: str, result: ReviewResult) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": result.allowed}
    if result.operations:
        patch = encode([operation.as_json() for operation in result.operations])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if result.warnings:
        response["warnings"] = list(result.warnings)
    if result.reasons:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": denial_message(result)}
    if result.concerned or result.reasons:
        response["auditAnnotations"] = _audit(result)
    return {"apiVersion": V1, "kind": "AdmissionReview", "response": response}


def _audit(result: ReviewResult) -> dict[str, str]:
    """Return the annotations for the API server's audit log, of at most 256 bytes per value (ADM-30)."""
    codes = ",".join(reason.code.name for reason in result.reasons)
    decision = codes or ("patched" if result.operations else "unchanged")
    return {
        "decision": decision[:256],
        "policies": ",".join(result.policies)[:256],
        "policy-hash": result.policy_hash[:12],
    }
