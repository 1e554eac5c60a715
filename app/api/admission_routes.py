# SPDX-License-Identifier: Apache-2.0
"""The admission routes: read an AdmissionReview, have it reviewed, and write the answer.

A review that cannot be read gets HTTP 400. A denial is HTTP 200 with `allowed: false`, because the API server does not
show the body of any other answer to the user (docs/reference/control-plane.md#answers-to-the-api-server).
"""

import base64
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app import __version__
from app.admission.claim_review import is_claim, read_claim
from app.admission.queued_jobs import Review, review_templates, template_targets_of
from app.admission.review import UNCONCERNED, ReviewResult, mutate, review_claim, validate
from app.admission.review_targets import ignored_annotations, review_target_of
from app.admission.reviewed_pod import ReviewContext, denial_message, is_exempt, limited_warnings
from app.api.wire import DECODE_ERRORS, decode_json, encode
from app.cluster.core import Core
from app.cluster.files import is_policy_file
from app.kube.api_kinds import API_KINDS
from app.kube.pod_limits import LONGEST_NAME
from app.policy.load import MOUNTED, POLICY_LABEL, POLICY_LABEL_VALUE
from app.values.errors import MalformedPod, OversizedPod, QuantityError, WireError
from app.values.json_members import member, object_if_any, strings
from app.values.reasons import Code, Reason, reason

GPUPOLICIES = API_KINDS["GPUPolicy"].group, API_KINDS["GPUPolicy"].plural
POLICY_HOLDERS = {(API_KINDS["ConfigMap"].group, API_KINDS["ConfigMap"].plural), GPUPOLICIES}
"""The kinds of objects that may hold policies, as pairs of API group and plural."""
VERSION = "gpu-usher.io/version"
"""The annotation by which the mounted ConfigMap of deploy/ names the version of gpu-usher that its policies are for."""
DELETED = f"{MOUNTED} is deleted: the last good policies stay in force; apply deploy/ again to bring it back"
"""Warnings have at most 120 characters."""

PolicyEdit = tuple[str, str, Mapping[str, Any]]
"""The kind, the name and the content of an edited object that holds policies."""
MOST_DOUBTS = 10
"""Warnings of one edit, since kubectl prints each. A guess."""


def is_policy(request: Mapping[str, Any]) -> bool:
    """Tell whether a request is about a kind of object that may hold policies."""
    resource = request.get("resource") or {}
    kind = (str(resource.get("group") or ""), str(resource.get("resource")))
    return kind in POLICY_HOLDERS and not request.get("subResource")


def judge_policy(request: Mapping[str, Any], core: Core) -> Generator[None, None, ReviewResult]:
    """Refuse in steps an edit that would make the set invalid; a valid policy and an object that holds none pass.

    Raises MalformedPod for shapes that no API server sends.
    """
    edited, before = request.get("object"), request.get("oldObject")
    place = f"{request.get('namespace')}/{request.get('name')}"
    operation, mounted = request.get("operation"), f"{core.settings.namespace}/{MOUNTED}"
    is_config_map = (request.get("resource") or {}).get("resource") != GPUPOLICIES[1]
    if operation == "DELETE" and is_config_map and place == mounted:
        return ReviewResult(False, warnings=(DELETED,))
    if edited is None or operation not in ("CREATE", "UPDATE"):
        return ReviewResult(False)
    metadata = member(edited, "metadata", dict, "object.") or {}
    name = member(metadata, "name", str, "object.metadata.") or ""
    if metadata.get("deletionTimestamp") is not None:
        return ReviewResult(False)
    checked: PolicyEdit | str | None
    if not is_config_map:
        unchanged = before is not None and before.get("spec") == edited.get("spec")
        written = {key: value for key, value in edited.items() if key != "status"}
        checked = None if unchanged else ("gpupolicy", name, written)
    elif (key := f"{request.get('namespace')}/{name}") == mounted and _for_another_version(edited, before):
        version = str(metadata["annotations"][VERSION])[:20]
        warning = f"policies for gpu-usher {version} are not checked by {__version__}: see /readyz after the rollout"
        return ReviewResult(False, warnings=(warning,))
    else:
        checked = _edited_texts(edited, before, core, key)
    if checked is None:
        return ReviewResult(False)
    problem, doubts = (checked, ()) if isinstance(checked, str) else (yield from core.check_policy(*checked))
    if problem is None:
        return ReviewResult(False, warnings=doubts[:MOST_DOUBTS])
    return ReviewResult(False, reasons=(Reason(Code.InvalidPolicy, "; ".join(problem.splitlines())),))


def _edited_texts(
    edited: Mapping[str, Any], before: Mapping[str, Any] | None, core: Core, key: str
) -> PolicyEdit | str | None:
    """Return what of a ConfigMap is to be checked: its kind, key and texts; a problem; or None if nothing is."""
    namespace, _, name = key.partition("/")
    mounted = name == MOUNTED
    if namespace != core.settings.namespace or not (mounted or _is_labelled(edited)):
        return None
    if before is not None and (mounted or _is_labelled(before)) and _contents(before) == _contents(edited):
        return None
    texts = dict(strings(edited, "data", "object."))
    for file, encoded in strings(edited, "binaryData", "object.").items():
        if not mounted:
            return f"configmap {key}: {file}: binaryData is not read: write the policy to data, in UTF-8"
        try:
            text = base64.b64decode(encoded).decode()
        except ValueError:
            text = None
        if is_policy_file(file):
            if text is None:
                return f"configmap {key}: {file}: not UTF-8: write it in UTF-8"
            texts[file] = text
    return "configmap", key, texts


def _for_another_version(edited: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Tell whether this edit is an upgrade or a rollback of gpu-usher, whose policies only that version can read.

    An edit that leaves the version as it was is checked, whichever version it names.
    """
    versions = [
        object_if_any(object_if_any(document or {}, "metadata"), "annotations").get(VERSION)
        for document in (edited, before)
    ]
    return before is not None and versions[0] not in (None, __version__, versions[1])


def _contents(config_map: Mapping[str, Any]) -> tuple[Any, Any]:
    return config_map.get("data"), config_map.get("binaryData")


def _is_labelled(config_map: Mapping[str, Any]) -> bool:
    metadata = member(config_map, "metadata", dict, "object.") or {}
    return strings(metadata, "labels", "object.metadata.").get(POLICY_LABEL) == POLICY_LABEL_VALUE


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


def review(body: bytes, verb: str, core: Core) -> Generator[None, None, Reviewed]:
    """Answer one AdmissionReview: one of a pod in one step, one of a policy in many. `verb` is mutate or validate.

    Raises WireError for a body that no API server sends.
    """
    try:
        request = read_envelope(decode_json(body))
    except WireError as error:
        if error.status != 413:
            raise
        return _deny_oversized(body, str(error), core)
    namespace = request.get("namespace") or "default"
    try:
        result = yield from _review_object(request, namespace, verb, core)
    except (MalformedPod, QuantityError) as error:
        raise WireError(400, f"request.object: {error}") from error
    handled, result = result is not None, result or UNCONCERNED
    name = request.get("name") or _generate_name(request)
    return Reviewed(
        body=encode(_answer(request["uid"], UNCONCERNED if core.settings.shadow else result)),
        result=result,
        handled=handled,
        uid=request["uid"],
        namespace=namespace,
        name=name,
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


def _deny_oversized(body: bytes, problem: str, core: Core) -> Reviewed:
    """Deny a review with too many values: under failurePolicy Ignore an HTTP error would let the object in.

    Raises WireError 400.
    """
    try:
        identity = msgspec.json.decode(body, type=_Envelope).request
        read_envelope({"kind": "AdmissionReview", "apiVersion": V1, "request": msgspec.to_builtins(identity)})
    except DECODE_ERRORS as error:
        raise WireError(400, "body: wants an AdmissionReview object") from error
    result = ReviewResult(False, reasons=(reason(Code.ObjectTooLarge, problem),))
    answer = encode(_answer(identity.uid, UNCONCERNED if core.settings.shadow else result))
    return Reviewed(answer, result, True, identity.uid, identity.namespace, identity.name, dry_run=False)


READ_MEMBERS = (("resource", dict), ("object", dict), ("oldObject", dict), ("namespace", str), ("name", str))
"""The members of an AdmissionRequest that are read without asking for their type again."""


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
    try:
        for key, kind in READ_MEMBERS:
            member(request, key, kind, "request.")
    except MalformedPod as error:
        raise WireError(400, str(error)) from error
    for key in ("uid", "namespace", "name"):  # the log and the recent decisions hold these
        if isinstance(request.get(key), str) and len(request[key]) > LONGEST_NAME:
            raise WireError(400, f"request.{key}: got {len(request[key])} characters, wants at most {LONGEST_NAME}")
    return request


def _review_object(
    request: Mapping[str, Any], namespace: str, verb: str, core: Core
) -> Generator[None, None, ReviewResult | None]:
    """Review the object of a request; None for kinds and operations that are not reviewed.

    Raises MalformedPod, QuantityError, and PatchError for a bug of ours.
    """
    if is_policy(request):
        return (yield from judge_policy(request, core)) if verb == "validate" else None
    subject = review_target_of(request)
    ignored = ignored_annotations(request) if verb == "mutate" else ()
    if subject is None:
        if is_claim(request):
            return _review_claim(request, namespace, verb, core)
        templates = template_targets_of(request, core.state.knowledge.workloads)
        if not templates:
            return ReviewResult(True, warnings=ignored) if ignored else None
        labels, context = core.namespace_labels(namespace), ReviewContext(core.world())
        try:
            return review_templates(templates, REVIEWS[verb], namespace, labels, context)
        except OversizedPod as error:
            return ReviewResult(True, reasons=(reason(Code.ObjectTooLarge, str(error)),))
    labels = core.namespace_labels(namespace)
    context = ReviewContext(
        core.world(),
        form=subject.form,
        existing_ephemeral=subject.existing_ephemeral,
        old_template=subject.old_template,
        queued=subject.queued,
    )
    try:
        result = REVIEWS[verb](subject.document, namespace, labels, context)
    except OversizedPod as error:
        return ReviewResult(True, reasons=(reason(Code.ObjectTooLarge, str(error)),))
    moved = map(subject.operation_on_object, result.operations) if subject.path else result.operations
    warnings = limited_warnings((*ignored, *result.warnings)) if ignored else result.warnings
    return replace(result, concerned=result.concerned or bool(ignored), operations=tuple(moved), warnings=warnings)


def _review_claim(request: Mapping[str, Any], namespace: str, verb: str, core: Core) -> ReviewResult | None:
    """Review a ResourceClaim or a template; None for an operation that is not reviewed. Raises as _review_object."""
    labels, context = core.namespace_labels(namespace), ReviewContext(core.world())
    if is_exempt(namespace, labels, context.world.knowledge):
        return UNCONCERNED
    try:
        claim = read_claim(request, labels, context)
    except OversizedPod as error:
        return ReviewResult(True, reasons=(reason(Code.ObjectTooLarge, str(error)),))
    return review_claim(claim, verb) if claim is not None else None


def _generate_name(request: Mapping[str, Any]) -> str:
    """Return the generateName of an object, which the log shows if it has no name."""
    metadata = (request.get("object") or {}).get("metadata")
    generate_name = metadata.get("generateName") if isinstance(metadata, dict) else None
    return generate_name[:LONGEST_NAME] if isinstance(generate_name, str) else ""


def _answer(uid: str, result: ReviewResult) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": not result.reasons}
    if result.operations:
        patch = encode([operation.as_json() for operation in result.operations])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if result.warnings:
        response["warnings"] = list(result.warnings)
    if result.reasons:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": denial_message(result.reasons)}
    if result.concerned or result.reasons:
        codes = ",".join(reason.code.name for reason in result.reasons)
        decision = codes or ("patched" if result.operations else "unchanged")
        response["auditAnnotations"] = {
            "decision": decision[:256],
            "policies": ",".join(result.policies)[:256],
            "policy-hash": result.policy_hash[:12],
        }
    return {"apiVersion": V1, "kind": "AdmissionReview", "response": response}
