# SPDX-License-Identifier: Apache-2.0
"""Targets: the functions that read strange bytes, each with a judge of the outcome.

A judge returns the outcome in a word or two. It raises AssertionError for an answer that violates the interface, and
lets any exception through that is not the documented one.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jsonpatch

from app.admission.review import mutate
from app.api.wire import ExtenderArgs, decode_extender_args, decode_json, decode_preemption_args, encode, status_body
from app.cluster.exporters import read_exposition
from app.cluster.files import shipped_policies
from app.cluster.listing import KindDecoders, Unreadable, UnreadableObject
from app.cluster.policy_watch import PolicyBook
from app.cluster.prometheus import read_answer
from app.cluster.snapshot import fill, read_snapshot
from app.cluster.watched_kinds import core_kinds, dra_kinds
from app.demo.sample_fleets import demo_fleet
from app.explain.pending_pod import explain
from app.explain.policy_cases import run_case
from app.kube.device_classes import DeviceClass
from app.kube.devices import ResourceSlice
from app.kube.gpu_usage import read_gpu_usage
from app.kube.pod_object import pod_object
from app.kube.records import read_record
from app.kube.resource_claims import ResourceClaim, ResourceClaimTemplate
from app.nodes.reading import read_node
from app.placement.engine import judge, total
from app.policy.case_document import read_case
from app.server.service import Service
from app.values.computations import finish
from app.values.errors import ApiError, BadInput, MalformedPod, PolicyError, QuantityError, SourceError, WireError
from app.web.api import dry_run
from app.world.fleet_facts import FleetFacts
from app.world.state import State
from tests.builders import demand, fleet, gpus, knowledge, make_service, node, pod, setting, shipped
from tests.finished import filter_nodes, load_policies, preempt, prioritize, review
from tests.fuzz.seeds import FLEETS

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Target:
    """A function that reads bytes. `seeds` is the kind of its good inputs, and `share` its percentage of all inputs."""

    name: str
    seeds: str
    share: float
    outcome: Callable[[bytes, int], str]


@cache
def service(name: str) -> Service:
    """Make the service of a demo fleet."""
    return make_service(Path(mkdtemp()), demo_fleet(name))


def _backend(number: int) -> Service:
    return service(FLEETS[number % len(FLEETS)])


def _wire(answer: Callable[[bytes, Service], str]) -> Callable[[bytes, int], str]:
    """Return the status of an error. A status of 500 or more is a failure, whatever was sent."""

    def outcome(body: bytes, number: int) -> str:
        try:
            return answer(body, _backend(number))
        except WireError as error:
            failure = error
        assert 400 <= failure.status < 500, failure
        assert len(json.loads(status_body(failure.status, str(failure)))["message"]) > 10
        return str(failure.status)

    return outcome


def _review(verb: str) -> Callable[[bytes, int], str]:
    def answer(body: bytes, core: Service) -> str:
        document = json.loads(review(body, verb, core).body)
        response, request = document["response"], decode_json(body)["request"]
        assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert response["uid"] == request["uid"]
        assert all(isinstance(warning, str) for warning in response.get("warnings", []))
        assert all(len(value) <= 256 for value in response.get("auditAnnotations", {}).values())
        if not response["allowed"]:
            assert response["status"]["code"] == 403
            assert len(response["status"]["message"]) <= 900
            assert "patch" not in response
            return "200 denied"
        if "patch" not in response:
            return "200 allowed"
        assert verb == "mutate"
        patched = jsonpatch.apply_patch(request["object"], json.loads(b64decode(response["patch"])))
        assert set(request["object"]) <= set(patched)
        return "200 patched"

    return _wire(answer)


def _names(args: ExtenderArgs) -> list[str]:
    nodes = (json.loads(bytes(raw), parse_int=float) for raw in (args.Nodes and args.Nodes.items) or ())
    return [node["metadata"]["name"] for node in nodes]


def _filter(body: bytes, core: Service) -> str:
    args = decode_extender_args(body)
    answer = json.loads(filter_nodes(body, core).body, parse_int=float)  # numbers in nodes may have any length
    refused = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    if args.NodeNames is not None:
        names, kept_names = args.NodeNames, answer["NodeNames"]
    else:
        names = _names(args)
        kept_names = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
    assert answer["Error"] == ""
    assert set(kept_names) | set(refused) == set(names)
    assert all(isinstance(message, str) and message for message in refused.values())
    return "200 kept some" if kept_names else "200 kept none"


def _prioritize(body: bytes, core: Service) -> str:
    args = decode_extender_args(body)
    answer = json.loads(prioritize(body, core).body)
    names = args.NodeNames
    if names is None:
        names = _names(args)
    assert [priority["Host"] for priority in answer] == names
    assert all(type(priority["Score"]) is int and 0 <= priority["Score"] <= 10 for priority in answer)
    return "200 scored"


def _preempt(body: bytes, core: Service) -> str:
    args = decode_preemption_args(body)
    answer = json.loads(preempt(body, core).body)
    assert list(answer) == ["NodeNameToMetaVictims"]
    assert set(answer["NodeNameToMetaVictims"]) <= set(args.NodeNameToMetaVictims or args.NodeNameToVictims or ())
    return "200 kept some" if answer["NodeNameToMetaVictims"] else "200 kept none"


def _web_route(route: Callable[[Mapping[str, Any], Service], Any]) -> Callable[[bytes, int], str]:
    def answer(body: bytes, core: Service) -> str:
        document = decode_json(body)
        if not isinstance(document, dict):
            return "400"
        try:
            answered = json.loads(encode(route(document, core)))
        except (MalformedPod, QuantityError):
            return "400"
        assert isinstance(answered["admission"]["allowed"] if "admission" in answered else answered["allowed"], bool)
        return "200"

    return _wire(answer)


def _object(read: Callable[[Mapping[str, Any]], Any]) -> Callable[[bytes, int], str]:
    """Read one object of the cluster as a snapshot has it."""

    def outcome(body: bytes, _number: int) -> str:
        try:
            for document in read_snapshot("f", body):
                read(document)
        except BadInput:
            return REFUSED
        return "read"

    return outcome


@cache
def _kinds() -> list[tuple[KindDecoders, Callable[[Mapping[str, Any]], Any]]]:
    state = State(knowledge())
    kinds = (
        *core_kinds(state, PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-21"), "gpu-usher"),
        *dra_kinds(state, "v1"),
    )
    reads = {"nodes": lambda document: read_node(document, state.knowledge)}  # the watch's reader caches all names
    return [(KindDecoders(kind.shape), reads.get(kind.name, kind.read)) for kind in kinds]


def _event(body: bytes, number: int) -> str:
    """Read a line of a watch as any kind of object. The reader may rely only on the shape that it has checked."""
    reading, read = _kinds()[number % len(_kinds())]
    try:
        _, event_object = reading.event(body)
        if isinstance(event_object, UnreadableObject):
            return "odd"
        read(event_object)
    except (Unreadable, ApiError, BadInput):
        return REFUSED
    return "read"


def _snapshot(body: bytes, _number: int) -> str:
    """Fill a state from a snapshot, and judge a pod on its nodes."""
    state = State(knowledge())
    try:
        fill(state, read_snapshot("f", body))
    except BadInput:
        return REFUSED
    state.fleet()
    for candidate in state.nodes.values():
        assert judge(_demand(), candidate, True) is not None or 0.0 <= total(_demand(), candidate) <= 1.0
    return "read"


@cache
def _demand() -> Any:
    return demand(pod())


@cache
def _fleet() -> FleetFacts:
    return fleet(node())


def _policy(body: bytes, _number: int) -> str:
    """Load a policy, and review a pod by it."""
    try:
        loaded = load_policies({"f": body.decode("utf-8", "replace")}, knowledge(), shipped().fallback)
    except PolicyError:
        return REFUSED
    mutate(pod(gpus(2)), "team-a", {"team": "a"}, setting(loaded, _fleet()))
    return "read"


def _case(body: bytes, _number: int) -> str:
    """Read a case, and run it."""
    try:
        case = read_case("f", body.decode("utf-8", "replace"))
    except PolicyError:
        return REFUSED
    try:
        return "differs" if list(run_case(case, shipped(), knowledge())) else "as expected"
    except BadInput:
        return REFUSED


def _metrics(read: Callable[[bytes, Any], Any]) -> Callable[[bytes, int], str]:
    def outcome(body: bytes, _number: int) -> str:
        try:
            polled = read(body, knowledge().dcgm)
        except SourceError:
            return REFUSED
        return "read, some odd" if polled.problem else "read"

    return outcome


TARGETS = (
    Target("mutate", "review", 18, _review("mutate")),
    Target("validate", "review", 12, _review("validate")),
    Target("filter", "filter", 12, _wire(_filter)),
    Target("prioritize", "prioritize", 8, _wire(_prioritize)),
    Target("preempt", "preempt", 8, _wire(_preempt)),
    Target(
        "explain", "pod", 1, _web_route(lambda document, service: finish(explain(document, service.world_copied())))
    ),
    Target("dry-run", "pod", 5, _web_route(dry_run)),
    Target("node", "node", 6, _object(lambda document: read_node(document, knowledge()))),
    Target("pod that holds", "holding", 5, _object(lambda document: read_gpu_usage(pod_object(document), knowledge()))),
    Target("ResourceSlice", "slice", 4, _object(partial(read_record, ResourceSlice))),
    Target("DeviceClass", "device class", 3, _object(partial(read_record, DeviceClass))),
    Target("ResourceClaim", "claim", 3, _object(partial(read_record, ResourceClaim))),
    Target("ResourceClaimTemplate", "claim template", 2, _object(partial(read_record, ResourceClaimTemplate))),
    Target("line of a watch", "event", 5, _event),
    Target("snapshot", "snapshot", 2, _snapshot),
    Target("policy", "policy", 1, _policy),
    Target("case", "case", 1, _case),
    Target("DCGM exposition", "exposition", 2, _metrics(read_exposition)),
    Target("Prometheus answer", "Prometheus", 2, _metrics(read_answer)),
)
