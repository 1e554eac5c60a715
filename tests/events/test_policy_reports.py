# SPDX-License-Identifier: Apache-2.0
"""What the writer of Events says of policies: conditions of GPUPolicies, Events on ConfigMaps, the last good set."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.cluster.policy_watch import PolicyBook
from app.events.planning import EventWrite, event_document
from app.events.policy_reports import HASH, MOST_BYTES, REASON, PolicyReporter, config_map_data, config_map_problems
from app.policy.load import LAST_GOOD, MOUNTED
from app.values.computations import finish
from app.values.errors import ApiError
from tests.builders import knowledge, policy

CONFIG_MAPS = "/api/v1/namespaces/gpu-usher/configmaps"
OBJECTS = "/apis/gpu-usher.io/v1alpha1/gpupolicies"
UNKNOWN: dict[str, Any] = {"placement": {"zzz": 1}}


class Server:
    """What the reporter needs of ApiServer: it stores objects by path, and keeps the paths of the patches."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            f"{CONFIG_MAPS}/{LAST_GOOD}": {"metadata": {}, "data": {"old.yaml": "x"}},
            f"{CONFIG_MAPS}/{MOUNTED}": {"metadata": {"uid": "of-mounted"}},
        }
        self.policies: dict[str, dict[str, Any]] = {}
        self.patched: list[str] = []
        self.refusing = ""
        self.served = OBJECTS

    async def read(self, path: str) -> dict[str, Any] | None:
        return {"items": list(self.policies.values())} if path == self.served else self.objects.get(path)

    async def patch(self, path: str, change: Mapping[str, Any], _kind: str) -> Mapping[str, Any]:
        self.patched.append(path)
        if self.refusing and self.refusing in path:
            raise ApiError(403, "forbidden")
        if path.startswith(self.served):
            self.policies[path.split("/")[-2]] |= change
        else:
            stored = self.objects[path]
            stored["metadata"].setdefault("annotations", {}).update(change["metadata"]["annotations"])
            merged = {**(stored.get("data") or {}), **change["data"]}
            stored["data"] = {key: text for key, text in merged.items() if text is not None}
        return change


class Scene:
    """A book with a directory of one file, and the reporter of what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(policy("base", ""))
        self.book = PolicyBook(folder, knowledge(), lambda: "2026-11-21", live=True)
        self.book.all_listed()
        self.server = Server()
        self.unreadable: str | None = None
        self.seconds = 0.0
        server: Any = self.server
        self.reporter = PolicyReporter(
            server,
            "gpu-usher",
            self.book,
            lambda: True,
            lambda: self.book.error or self.unreadable,
            lambda: self.seconds,
            self.rest,
        )

    async def rest(self, seconds: float) -> None:
        self.seconds += seconds

    def write(self, text: str) -> None:
        (self.folder / "base.yaml").write_text(text, "utf-8")

    def put(self, name: str, generation: int = 1, **spec: Any) -> None:
        """Store a GPUPolicy, and let the book read it."""
        header = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy"}
        document = {**header, "metadata": {"name": name}, "spec": spec}
        metadata = {"name": name, "generation": generation, "uid": name}
        self.server.policies[name] = {**self.server.policies.get(name, {}), **document, "metadata": metadata}
        self.book.put_source(f"gpupolicy {name}", document)

    def look(self) -> None:
        """Load what was written, and look."""
        finish(self.book.load())
        asyncio.run(self.reporter.look())

    def accepted(self, name: str) -> tuple[str, str, int]:
        """Return status, reason and observed generation of the condition."""
        (condition,) = self.server.policies[name]["status"]["conditions"]
        assert condition["type"] == "Accepted"
        return condition["status"], condition["reason"], condition["observedGeneration"]

    def message(self, name: str) -> str:
        message: str = self.server.policies[name]["status"]["conditions"][0]["message"]
        return message

    def last_good(self) -> dict[str, str]:
        kept: dict[str, str] = self.server.objects[f"{CONFIG_MAPS}/{LAST_GOOD}"]["data"]
        return kept


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_whole_set_in_force_is_kept_for_replicas_that_start(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """F76: a replica that starts with a mistake reads it back and serves the same policies."""
    scene.put("team", priority=4)
    scene.book.put_config_map("gpu-usher/more", {"a b.yaml": policy("more", "priority: 5")})

    scene.look()

    starting = tmp_path_factory.mktemp("starting")
    (starting / "base.yaml").write_text("spec: {", "utf-8")
    book = PolicyBook(starting, knowledge(), lambda: "2026-11-21", live=True)
    book.put_config_map(f"gpu-usher/{LAST_GOOD}", scene.last_good())
    finish(book.load())
    assert "old.yaml" not in scene.last_good()
    assert book.current.hash == scene.book.current.hash
    annotations = scene.server.objects[f"{CONFIG_MAPS}/{LAST_GOOD}"]["metadata"]["annotations"]
    assert annotations == {HASH: scene.book.current.hash}


def test_set_with_a_mistake_is_not_kept(scene: Scene) -> None:
    """F76."""
    scene.look()
    kept = scene.last_good()

    scene.write("spec: {")
    scene.look()

    assert scene.last_good() == kept


def test_set_is_not_kept_before_all_of_it_was_read(tmp_path: Path) -> None:
    """F76: a process that has just started knows the directory alone; the same where GPUPolicies cannot be read."""
    scene = Scene(tmp_path)
    scene.unreadable = "gpupolicies cannot be read: 403"
    scene.look()
    scene.unreadable = None
    scene.book._all_listed = False
    scene.look()

    assert scene.last_good() == {"old.yaml": "x"}


def test_set_that_no_config_map_can_hold_is_not_kept(scene: Scene) -> None:
    """F103: the API server refuses more than 1 MiB."""
    scene.put("team", description="x" * 100)
    for index in range(40):
        filler = "#" * (MOST_BYTES // 30)
        scene.book.put_config_map(f"gpu-usher/more-{index}", {"a.yaml": policy(f"p{index}", "") + filler})

    scene.look()

    assert scene.book.error is None
    assert scene.last_good() == {"old.yaml": "x"}


@pytest.mark.parametrize(
    "name", ["a.yaml", "configmap gpu-usher/team: a.yaml", "gpupolicy x", "ä b.yaml", "x" * 300 + "/"]
)
def test_names_of_texts_become_keys_that_a_config_map_can_have(name: str) -> None:
    """Kubernetes: at most 253 of the characters -._a-zA-Z0-9 (apimachinery IsConfigMapKey)."""
    (key,) = config_map_data({name: "x"})

    assert 0 < len(key) <= 253
    assert all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in key)


def test_condition_says_what_has_become_of_a_policy(scene: Scene) -> None:
    """F131: in force; with a mistake; valid, but of a set with a mistake."""
    scene.put("team", priority=4)
    scene.look()
    first = scene.accepted("team")

    scene.put("team", 2, priority=5)
    scene.put("wrong", **UNKNOWN)
    scene.look()

    assert first == ("True", "InForce", 1)
    assert scene.accepted("team") == ("False", "SetInvalid", 2)
    assert "gpupolicy wrong: spec.placement.zzz: unknown field" in scene.message("team")
    assert scene.accepted("wrong") == ("False", "Invalid", 1)
    assert scene.server.policies["wrong"]["status"]["hash"] == scene.book.current.hash[:12]


def test_condition_is_written_in_a_version_that_is_served(scene: Scene) -> None:
    """F131: a definition of a later release may lack the older one."""
    scene.server.served = OBJECTS.replace("v1alpha1", "v1beta1")
    scene.put("team", priority=4)

    scene.look()

    assert scene.accepted("team") == ("True", "InForce", 1)
    assert scene.server.patched[-1] == f"{scene.server.served}/team/status"


@pytest.mark.parametrize(
    "head",
    ["apiVersion: {}\nkind: GPUPolicy\nmetadata: {{name: a}}\n",
     '{{"apiVersion":"{}", kind: GPUPolicy, metadata: {{name: a}}}}',
     "---\nkind: GPUPolicy\nmetadata: {{name: a}}\napiVersion: '{}' # gpu-usher.io/v1beta1\n"],
    ids=["block", "flow", "quoted"],
)  # fmt: skip
def test_last_good_set_is_kept_in_the_version_that_the_former_release_reads(scene: Scene, head: str) -> None:
    """F76: after `kubectl rollout undo` its replicas read what a controller of this release has kept."""
    scene.write(head.format("gpu-usher.io/v1beta1"))

    scene.look()

    assert scene.book.error is None
    assert scene.last_good()["base.yaml"] == head.format("gpu-usher.io/v1alpha1")


def test_policy_that_was_in_force_before_a_mistake_of_another_stays_accepted(scene: Scene) -> None:
    """F131."""
    scene.put("team", priority=4)
    scene.look()

    scene.write("spec: {")
    scene.look()

    assert scene.accepted("team") == ("True", "InForce", 1)


def test_condition_that_stands_is_not_written_again(scene: Scene) -> None:
    """F131: a condition changes its time only with its status."""
    scene.put("team", priority=4)
    scene.look()
    since = scene.server.policies["team"]["status"]["conditions"][0]["lastTransitionTime"]
    scene.server.policies["team"]["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    count = len(scene.server.patched)

    scene.seconds += 100
    scene.look()
    again = len(scene.server.patched)
    scene.put("team", 2, priority=5)
    scene.look()

    assert (len(since), again) == (20, count)
    assert scene.accepted("team") == ("True", "InForce", 2)
    assert scene.server.policies["team"]["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_policy_that_was_edited_since_it_was_read_waits_for_the_next_look(scene: Scene) -> None:
    """F131: the condition must not be about another generation."""
    scene.put("team", priority=4)
    scene.server.policies["team"]["spec"] = {"priority": 9}

    scene.look()

    assert "status" not in scene.server.policies["team"]


def test_config_map_with_a_mistake_gets_an_event(scene: Scene) -> None:
    """F76, F131: on the one that holds it, with what is in force."""
    scene.look()
    scene.write("spec: {")
    scene.look()

    ((reference, statement),) = scene.reporter.statements.items()
    document = event_document(EventWrite(reference, statement), "replica", "2026-11-25T00:00:00.000000Z")
    assert document["regarding"] == {
        "apiVersion": "v1", "kind": "ConfigMap", "namespace": "gpu-usher", "name": MOUNTED, "uid": "of-mounted"
    }  # fmt: skip
    assert (document["reason"], document["action"]) == (REASON, "Loading")
    assert document["note"].startswith("base.yaml:2:1: not YAML: ")
    assert document["note"].endswith("; in force: last good set")


def test_event_ends_with_the_mistake(scene: Scene) -> None:
    """F76."""
    scene.write("spec: {")
    scene.look()
    scene.write(policy("base", "priority: 1"))
    scene.look()

    assert scene.reporter.statements == {}


def test_problems_are_of_the_config_map_that_they_name() -> None:
    """F131: what is of a GPUPolicy is in its status."""
    lines = ["base.yaml:1:1: a", "configmap gpu-usher/team: x.yaml:1:1: b", "gpupolicy mine: c", "/etc/policies: d"]

    assert config_map_problems("\n".join(lines)) == {MOUNTED: [lines[0], lines[3]], "team": [lines[1]]}


def test_what_the_api_server_refuses_keeps_nothing_else_from_being_written(scene: Scene) -> None:
    """F131: the definition may be of a version without status."""
    scene.put("team", priority=4)
    scene.server.refusing = LAST_GOOD

    scene.look()

    assert scene.accepted("team") == ("True", "InForce", 1)
    scene.server.refusing = ""
    scene.seconds += 100
    scene.look()
    assert "base.yaml" in scene.last_good()
