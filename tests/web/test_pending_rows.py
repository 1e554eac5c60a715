# SPDX-License-Identifier: Apache-2.0
"""The list of waiting pods: which pods are on it, why they wait, and what it costs to compute."""

import asyncio
import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest

from app.api.explain_api import Explainer
from app.api.pending_reasons import (
    CHECK_SECONDS,
    MOST_SHAPES,
    READ_AT_ONCE,
    REST_SECONDS,
    PendingReasons,
    reading_order,
)
from app.cluster.files import shipped_policies
from app.cluster.policy_watch import PolicyBook
from app.cluster.watched_kinds import core_kinds
from app.explain.pending_cause import PendingCause
from app.kube.pending_pods import PendingPod, read_pending_pod
from app.kube.pod_object import pod_object
from app.kube.records import read_record
from app.server.service import Service
from app.values.errors import WireError
from app.web.rendering import age
from app.web.views.pending_rows import FITS_HELP, PendingFilter, PendingPodRow, choices_of, groups_of, rows, selected
from app.world.state import State
from tests.builders import gpus, knowledge, pod, policies, policy

NOW = dt.datetime(2026, 11, 25, 16, 7, 30, tzinfo=dt.UTC)


def waiting(name: str, amount: int = 1, **status: str) -> dict[str, Any]:
    made = pod(gpus(amount))
    made["metadata"] |= {"name": name, "uid": name}
    return {**made, "status": {"phase": "Pending", **status}}


@pytest.mark.parametrize(
    ("document", "waits"),
    [
        (waiting("a"), True),
        (waiting("a", nominatedNodeName="n"), True),
        (waiting("a", phase="Failed"), False),
        (pod(gpus(1), nodeName="n"), False),
        (pod({"name": "m", "resources": {"limits": {"cpu": "1"}}}), False),
        (pod(gpus(0)), False),
        ({"metadata": {}, "spec": {}}, False),
    ],
    ids=["pending", "nominated", "failed", "bound", "no gpu", "none asked", "empty"],
)
def test_unbound_gpu_pods_wait(document: Mapping[str, Any], waits: bool) -> None:
    """F132."""
    assert (read_pending_pod(pod_object(document), knowledge()) is not None) == waits


def test_list_follows_what_the_watch_says() -> None:
    """F132: a pod stays until it is bound, finished or deleted; a live cluster's documents are not kept."""
    state = State(knowledge())
    book = PolicyBook(shipped_policies(), knowledge(), lambda: "2026-11-25")
    kind = next(watched for watched in core_kinds(state, book, "x") if watched.name == "pods")

    def see(document: Mapping[str, Any]) -> list[str]:
        kind.put("", document["metadata"]["uid"], kind.read(read_record(kind.shape, document)))
        return [pending.name for pending in state.pending_pods.values()]

    assert see(waiting("a")) == ["a"]
    assert see(waiting("b")) == ["a", "b"]
    assert [pending.document for pending in state.pending_pods.values()] == [None, None]
    assert see({**waiting("a"), "spec": {**waiting("a")["spec"], "nodeName": "n"}}) == ["b"]
    kind.drop("", "b")
    assert len(state.pending_pods) == 0
    assert state.pending_pods.generation == 4


def as_stored(document: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Add what the admission plugin ServiceAccount writes into every pod."""
    volume = f"kube-api-access-{suffix:>05}"
    document["spec"]["volumes"] = [{"name": volume, "projected": {"sources": []}}]
    document["spec"]["containers"][0]["volumeMounts"] = [{"name": volume, "mountPath": "/var/run/secrets"}]
    return document


def owned(document: dict[str, Any], uid: str) -> dict[str, Any]:
    """Let a Job be the controller of a pod."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": uid, "uid": uid, "controller": True}
    document["metadata"]["ownerReferences"] = [owner]
    return document


def check(causes: PendingReasons) -> None:
    """Read pods once, and compute the reasons that are due."""

    async def steps() -> None:
        await causes.read_some()
        await causes.explain_due()

    asyncio.run(steps())


class Live:
    """A service with a live cluster from which pods can be fetched; `fetched` holds those that were."""

    def __init__(self, service: Service, documents: list[dict[str, Any]]) -> None:
        self._service = service
        self._documents: dict[str, dict[str, Any]] = {}
        self.policies = service.policies
        self.fetched: list[str] = []
        self.state = State(knowledge())
        self.state.nodes = service.state.nodes
        for document in documents:
            self.add(document)

    def add(self, document: dict[str, Any]) -> None:
        """Let one more pod wait."""
        self._documents[document["metadata"]["name"]] = document
        self.state.pending_pods.put(document["metadata"]["uid"], read_pending_pod(pod_object(document), knowledge()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def fetch_pod(self, _namespace: str, name: str) -> Mapping[str, Any]:
        self.fetched.append(name)
        if name == "gone":
            raise WireError(404, "gone")
        return self._documents[name]


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test wait for the rests between reads."""
    monkeypatch.setattr("app.api.pending_reasons.REST_SECONDS", 0)
    monkeypatch.setattr("app.api.pending_reasons.UNWATCHED_REST_SHARE", 0)


class Counting(Explainer):
    """An Explainer that counts its explanations."""

    explained = 0

    async def of(self, document: Mapping[str, Any], live: bool) -> Any:
        self.explained += 1
        return await super().of(document, live)


def test_pods_that_ask_the_same_are_explained_once(service: Service) -> None:
    """F132: 30 replicas of one template cost one explanation; a pod that was deleted meanwhile costs none.

    The reason of the other pod is its 16 GPUs, which no toleration makes fit.
    """
    documents = [*(waiting(f"same-{index}") for index in range(30)), waiting("other", 16), waiting("gone")]
    live: Any = Live(service, documents)
    explainer = Counting(live)
    causes = PendingReasons(live, explainer)

    causes.request()
    before = causes.looking
    check(causes)
    shown = rows(live.state.pending_pods.values(), causes.reason_by_pod(), "")

    assert (before, causes.looking) == (True, False)
    assert len(live.fetched) == 32
    assert explainer.explained == 2
    assert [row.name for row in shown if row.cause is None] == ["gone"]
    reasons = {row.name: row.cause.reason for row in shown if row.cause}
    assert reasons.pop("other") == "RequestExceedsNode"
    assert set(reasons.values()) == {"UntoleratedTaint"}


@pytest.mark.usefixtures("no_rest")
def test_pods_of_one_job_are_explained_once(service: Service) -> None:
    """F139: as a real cluster stores them, with a token volume of a random name in each."""
    mates = [as_stored(waiting(f"mate-{index}"), str(index)) for index in range(MOST_SHAPES + 1)]
    live: Any = Live(service, mates)
    explainer = Counting(live)
    causes = PendingReasons(live, explainer)

    for _ in range(len(mates) // READ_AT_ONCE + 1):
        check(causes)

    assert explainer.explained == 1
    assert len(causes.reason_by_pod()) == len(mates)


@pytest.mark.usefixtures("no_rest")
def test_pod_beyond_the_most_shapes_is_explained_once_there_is_room(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F139: as soon as the pods of another shape no longer wait."""
    monkeypatch.setattr("app.api.pending_reasons.MOST_SHAPES", 3)
    live: Any = Live(service, [waiting(f"p-{amount}", amount) for amount in range(1, 6)])
    causes = PendingReasons(live, Explainer(live))
    check(causes)
    assert [pod.name for pod in causes.reason_by_pod()] == ["p-1", "p-2", "p-3"]

    live.state.pending_pods.put("p-1", None)
    check(causes)

    assert {pod.name for pod in causes.reason_by_pod()} == {"p-2", "p-3", "p-4"}


def test_one_pod_of_each_controller_is_read_first() -> None:
    """F139: so that the cause of the last Job is known as early as that of the first."""
    pods = [PendingPod("n", name, (), controller_uid=name[:1]) for name in ("a1", "a2", "a3", "b1", "b2")]
    alone = [PendingPod("n", name, ()) for name in ("x", "y")]

    assert [pod.name for pod in reading_order([*pods, *alone])] == ["a1", "b1", "x", "y", "a2", "a3", "b2"]


@pytest.mark.usefixtures("no_rest")
def test_new_workload_is_read_before_the_rest_of_an_old_one(service: Service) -> None:
    """F139: the order is made anew after READ_AT_ONCE pods."""
    old = [owned(waiting(f"old-{index:03}"), "old") for index in range(READ_AT_ONCE + 30)]
    live: Any = Live(service, old)
    causes = PendingReasons(live, Explainer(live))
    check(causes)
    assert (len(live.fetched), causes.looking) == (READ_AT_ONCE, True)

    live.add(owned(waiting("zz-new", 16), "new"))
    check(causes)

    assert live.fetched.index("zz-new") == READ_AT_ONCE
    assert (len(live.fetched), causes.looking) == (len(old) + 1, False)


@pytest.mark.usefixtures("no_rest")
def test_policy_that_matches_on_another_label_tells_pods_apart(service: Service) -> None:
    """F139: pods that were alike before are read again."""
    labelled = [waiting("a"), waiting("b")]
    for document in labelled:
        document["metadata"]["labels"] = {"tier": document["metadata"]["name"]}
    live: Any = Live(service, labelled)
    explainer = Counting(live)
    causes = PendingReasons(live, explainer)
    check(causes)
    assert explainer.explained == 1

    live.policies = policies(policy("x", "match: {podSelector: {matchLabels: {tier: a}}}"))
    check(causes)

    assert (len(live.fetched), explainer.explained) == (4, 3)


def test_nothing_is_worked_out_again_while_nothing_changed(service: Service) -> None:
    """F132."""
    live: Any = Live(service, [waiting("a")])
    explainer = Counting(live)
    causes = PendingReasons(live, explainer)

    for _ in range(3):
        check(causes)

    assert (live.fetched, explainer.explained) == (["a"], 1)


@pytest.mark.parametrize(("tolerates", "explained"), [(True, 2), (False, 1)], ids=["fits", "refused"])
def test_pod_that_fits_is_explained_again_soon(
    service: Service, monkeypatch: pytest.MonkeyPatch, tolerates: bool, explained: int
) -> None:
    """F139: what keeps it, such as a device of its claim that is not ready, is no change of a node."""
    document = waiting("a")
    document["spec"]["tolerations"] = [{"operator": "Exists"}] if tolerates else []
    live: Any = Live(service, [document])
    explainer = Counting(live)
    causes = PendingReasons(live, explainer)
    monkeypatch.setattr("app.api.pending_reasons.STALE_SECONDS", 0)

    for _ in range(2):
        check(causes)

    assert explainer.explained == explained


def test_page_is_told_of_a_pod_whose_reason_was_known(service: Service) -> None:
    """F132: else its row would say for ever that the reason is being worked out."""
    live: Any = Live(service, [waiting("a")])
    causes = PendingReasons(live, Explainer(live))
    check(causes)
    known = causes.generation
    live._documents["b"] = new = waiting("b")
    live.state.pending_pods.put("b", read_pending_pod(pod_object(new), knowledge()))
    check(causes)
    assert causes.generation == known + 1


def test_reasons_that_are_kept_current_need_nobody_to_ask(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """F139: as Events need them; with a rest of nine times what an explanation took."""
    live: Any = Live(service, [waiting("a"), waiting("b", 16)])
    causes = PendingReasons(live, Counting(live))
    rests: list[float] = []
    rest = asyncio.sleep

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) > 60:
            raise asyncio.CancelledError
        await rest(0)

    async def run() -> None:
        monkeypatch.setattr("app.api.pending_reasons.asyncio.sleep", sleep)
        await causes.run()

    causes.kept_current = True
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())

    explained = list(causes.explained_pods())
    assert [entry.pod.reference.uid for entry in explained] == ["a", "b"]
    assert [entry.cause.reason for entry in explained] == ["UntoleratedTaint", "RequestExceedsNode"]
    assert sum(seconds > REST_SECONDS and seconds != CHECK_SECONDS for seconds in rests) >= 2


def test_pods_that_are_gone_are_forgotten(service: Service) -> None:
    """F132: nothing accumulates."""
    live: Any = Live(service, [waiting("a"), waiting("b", 16)])
    causes = PendingReasons(live, Explainer(live))
    check(causes)

    live.state.pending_pods.put("a", None)
    check(causes)

    assert [pending.name for pending in causes.reason_by_pod()] == ["b"]


def test_who_waits_longest_comes_first() -> None:
    """F132: a pod without a creation time comes last."""
    pods = [PendingPod("n", name, (), created) for name, created in (("x", ""), ("y", "2026-02"), ("z", "2026-01"))]

    shown = rows(pods, {}, "")

    assert [row.name for row in shown] == ["z", "y", "x"]


@pytest.mark.parametrize(
    ("stamp", "words"),
    [
        ("2026-11-25T16:07:31Z", "0 s"),
        ("2026-11-25T16:06:31Z", "59 s"),
        ("2026-11-25T15:26:18Z", "41 min"),
        ("2026-11-25T14:07:30+00:00", "2 h 0 min"),
        ("2026-11-22T13:00:00Z", "3 d 3 h"),
        ("", ""),
        ("2026-11-25T15:26:18", ""),
        ("<script>", ""),
    ],
    ids=["clock ahead", "seconds", "minutes", "hours", "days", "unknown", "no time zone", "no timestamp"],
)
def test_age_is_words_and_not_a_timestamp(stamp: str, words: str) -> None:
    """F132."""
    assert age(stamp, NOW) == words


def row(name: str, cause: PendingCause | None, namespace: str = "a") -> PendingPodRow:
    return PendingPodRow(namespace, name, "1 × nvidia.com/gpu", "", cause)


DRIVER = PendingCause("DriverTooOld", "CUDA driver too old: wants >= 580", 4, 0, "", 9, "use an older image")
PRODUCT = PendingCause("ProductNotAllowed", "wants H100", 3, 0, "allow A100", 9, "r", opens="1 node, such as x")
FITTING = PendingCause("", "fits on 120 nodes now", 0, 120, "")
SIXTY = [*(row(f"p{index}", DRIVER) for index in range(40)), *(row(f"q{index}", PRODUCT, "b") for index in range(19)),
         row("new", None), row("fits", FITTING)]  # fmt: skip


def test_pods_of_one_cause_are_one_group_and_those_of_most_pods_come_first() -> None:
    """F132, F139: what would help is said once for all pods for which it is the same."""
    groups = groups_of(SIXTY, 10)

    assert [(group.code, group.count, len(group.rows)) for group in groups] == [
        ("DriverTooOld", 40, 10), ("ProductNotAllowed", 19, 10), ("fits now", 1, 1), ("being worked out", 1, 1),
    ]  # fmt: skip
    assert [group.help for group in groups] == [
        "use an older image", "allow A100 → opens 1 node, such as x", FITS_HELP, "",
    ]  # fmt: skip


def test_help_that_differs_stays_with_each_pod() -> None:
    """F132."""
    (group,) = groups_of([row("a", DRIVER), row("b", PendingCause(*(DRIVER.reason, DRIVER.message, 4, 0, "x")))], 10)

    assert (group.help, [shown.help for shown in group.rows]) == ("", ["use an older image", "x"])


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (PendingFilter(), 61),
        (PendingFilter(namespace="b"), 19),
        (PendingFilter(cause="fits now"), 1),
        (PendingFilter(cause="being worked out"), 1),
        (PendingFilter("a", "ProductNotAllowed"), 0),
    ],
    ids=["all", "namespace", "fits", "unknown", "both"],
)
def test_pending_pods_are_filtered_by_namespace_and_cause(asked: PendingFilter, count: int) -> None:
    """F132."""
    assert len(selected(SIXTY, asked)) == count


def test_each_namespace_and_cause_can_be_chosen() -> None:
    """F132."""
    causes = ("DriverTooOld", "ProductNotAllowed", "being worked out", "fits now")

    assert choices_of(SIXTY) == (("namespace", ("a", "b")), ("cause", causes))
    assert choices_of([]) == (("namespace", ()), ("cause", ()))


@pytest.mark.parametrize(
    ("created", "unseen_by", "code"),
    [
        ("2026-11-25T15:00:00Z", "volcano", "SchedulerSilent"),
        ("2026-11-25T15:00:00Z", "", "fits now"),
        ("2026-11-25T16:07:00Z", "volcano", "fits now"),
        ("", "volcano", "fits now"),
    ],
    ids=["silent", "seen", "new", "unknown age"],
)
def test_scheduler_that_does_not_look_is_the_cause_of_a_pod_that_fits(created: str, unseen_by: str, code: str) -> None:
    """F132: as Events say it."""
    pending = PendingPod("n", "p", (), created, unseen_by=unseen_by)

    (shown,) = rows([pending], {pending: FITTING}, "2026-11-25T16:05:30Z")

    assert shown.code == code
