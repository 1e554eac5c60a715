# SPDX-License-Identifier: Apache-2.0
"""Bad edits by every way in: refused at the door, and served around where one came in while nobody was asked (F131)."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app import __version__
from app.cluster.files import read_policies, shipped_policies
from app.cluster.policy_watch import LAST_GOOD_SET, VALID_ONES, PolicyBook
from app.events.policy_reports import config_map_data
from app.policy.load import LAST_GOOD, MOUNTED
from app.server.service import Service
from app.values.computations import finish
from app.values.errors import PolicyError
from tests.api.bad_edits import MISTAKES, NO_OBJECT, VALID
from tests.api.policy_reviews import CONFIGMAPS, GPUPOLICIES, config_map, denial_message, gpu_policy
from tests.builders import gpus, knowledge, make_service, pod, policy
from tests.builders import review as wrap
from tests.finished import review

BASE = policy("base", "priority: 30, admission: {maxGPUsPerPod: 4, runtimeClassName: nvidia}")
Content = str | bytes
WAYS = ("mounted", "labelled", "object")
CASES = [(way, mistake) for way in WAYS for mistake in MISTAKES if way != "object" or mistake not in NO_OBJECT]
REFUSED_BEFORE = {("object", mistake) for mistake in ("no name", "kind", "version", "text", "field beside the spec")}
"""What the API server itself refuses, or prunes, before it asks us."""
KINDS = {"field", "name of another", "tie with another", "bound", "no YAML", "many values", "no UTF-8"}
"""A mistake for each stage of reading: the text, the document, the model, and the set."""


class Cluster:
    """Policies as they are stored, and services that start with them, as replicas do after a drain.

    The mounted directory has base.yaml, which the shipped default and another policy stand beside; the content of
    own.yaml is there, in a labelled ConfigMap, or in a GPUPolicy, by `way`.
    """

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self._certs, self._way = folder / "mounted", folder / "certs", way
        self.folder.mkdir()
        self._last_good: dict[str, str] = {}
        self._content: Content = VALID
        (self.folder / "base.yaml").write_text(BASE, "utf-8")
        (self.folder / "default.yaml").write_bytes((shipped_policies() / "default.yaml").read_bytes())
        self.write(VALID)

    def write(self, content: Content) -> None:
        """Store an edit without asking anybody, as while the webhook is away."""
        self._content = content
        if self._way == "mounted":
            (self.folder / "own.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())

    def start(self) -> Service:
        """Start a replica: it has read its directory, and then the lists of the cluster arrive."""
        service = make_service(self._certs, [])
        service.book = PolicyBook(self.folder, knowledge(), lambda: "2026-11-21", live=True)
        self.list_into(service.book)
        finish(service.book.load())
        return service

    def list_into(self, book: PolicyBook) -> None:
        if self._last_good:
            book.put_config_map(f"gpu-usher/{LAST_GOOD}", self._last_good)
        text = self._content.decode(errors="replace") if isinstance(self._content, bytes) else self._content
        if self._way == "labelled":
            book.put_config_map("gpu-usher/team", {"own.yaml": text})
        if self._way == "object":
            document = yaml.load(text, yaml.CSafeLoader)
            book.put_source(f"gpupolicy {(document.get('metadata') or {}).get('name', 'own')}", document)
        book.config_maps_listed()
        book.all_listed()

    def keep_last_good(self, book: PolicyBook) -> None:
        """Keep a set as the writer of Events does."""
        self._last_good = config_map_data(book.whole_set() or {})

    def ask(self, service: Service, content: Content) -> str:
        """Return how the door answers an edit; empty where it lets it in."""
        data: dict[str, str] = {"own.yaml": content} if isinstance(content, str) else {}
        encoded = "" if isinstance(content, str) else base64.b64encode(content).decode()
        if self._way == "object":
            assert isinstance(content, str)
            document = yaml.load(content, yaml.CSafeLoader)
            named = document.get("metadata") or {"name": "own"}
            made = {**gpu_policy(None), **document, "metadata": named}
            return denial_message(service, made, GPUPOLICIES, operation="UPDATE", oldObject=gpu_policy({}, "own"))
        if self._way == "mounted":
            data = {file.name: file.read_text("utf-8") for file in self.folder.iterdir() if file.stem != "own"} | data
        name = MOUNTED if self._way == "mounted" else "team"
        made = config_map(data, name, {} if self._way == "mounted" else None)
        made["binaryData"] = {"own.yaml": encoded} if encoded else None
        return denial_message(service, made, CONFIGMAPS, operation="UPDATE", oldObject=config_map({}, name))


def admitted(service: Service, requested: int = 1) -> bool:
    """Tell whether a GPU pod is let in."""
    body = json.dumps(wrap(pod(gpus(requested)))).encode()
    answers = [json.loads(review(body, verb, service).body)["response"]["allowed"] for verb in ("mutate", "validate")]
    return all(answers)


def names(service: Service) -> set[str]:
    return {policy.name for policy in service.policies.policies}


@pytest.mark.parametrize(
    ("way", "mistake"), [case for case in CASES if case not in REFUSED_BEFORE], ids=lambda part: part.replace(" ", "-")
)
def test_bad_edit_is_refused_at_the_door(tmp_path: Path, way: str, mistake: str) -> None:
    """F131: the mounted ConfigMap is known by its name, and the message says what is wrong."""
    content, words = MISTAKES[mistake]
    cluster = Cluster(tmp_path, way)
    service = cluster.start()

    assert words in cluster.ask(service, content)
    assert cluster.ask(service, VALID) == ""
    assert service.book.error is None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_file_is_found_before_it_is_applied(tmp_path: Path, mistake: str) -> None:
    """F76: what the service would refuse, `gpu-usher policy lint` finds."""
    content, words = MISTAKES[mistake]
    cluster = Cluster(tmp_path, "mounted")
    cluster.write(content)

    with pytest.raises(PolicyError) as found:
        read_policies(cluster.folder, knowledge())

    assert words in str(found.value)


@pytest.mark.parametrize(("way", "mistake"), [case for case in CASES if case[1] in KINDS])
def test_bad_edit_that_came_in_is_served_around_by_old_and_new_replicas(tmp_path: Path, way: str, mistake: str) -> None:
    """F76, F131: the webhook was away. GPU pods are admitted throughout, and judged by the policies of before.

    A replica that runs, and one that starts, serve the last good set; without one, a mistake costs only the policies of
    its own file, ConfigMap or object.
    """
    content, words = MISTAKES[mistake]
    cluster = Cluster(tmp_path, way)
    running = cluster.start()
    good = running.policies.hash

    cluster.write(content)
    cluster.list_into(running.book)
    finish(running.book.load())
    without = cluster.start()
    cluster.write(VALID)
    cluster.keep_last_good(cluster.start().book)
    cluster.write(content)
    restarted = cluster.start()

    assert [(admitted(each, 4), admitted(each, 5)) for each in (running, without, restarted)] == [(True, False)] * 3
    health = [each.health() for each in (running, without, restarted)]
    assert [each["ready"] for each in health] == [True] * 3
    if (way, mistake) == ("labelled", "no UTF-8"):  # what is no text is not read
        return
    assert [each["policies"]["serving"] for each in health] == [LAST_GOOD_SET, VALID_ONES, LAST_GOOD_SET]
    assert all(words in each["policies"]["error"] for each in health)
    assert (running.policies.hash, restarted.policies.hash, names(without)) == (good, good, {"base", "default"})


@pytest.mark.parametrize("gone", ["files", "all of one"])
def test_directory_without_its_files_is_served_around(tmp_path: Path, gone: str) -> None:
    """F76: the ConfigMap is deleted or emptied, and the volume is optional."""
    cluster = Cluster(tmp_path, "mounted")
    running = cluster.start()
    if gone == "files":
        cluster.keep_last_good(running.book)
    for file in cluster.folder.iterdir():
        file.unlink()

    restarted = cluster.start()

    assert "no *.yaml in it" in str(restarted.book.error)
    assert admitted(restarted)
    assert admitted(restarted, 5) is (gone != "files")
    assert names(restarted) == ({"base", "default", "own"} if gone == "files" else set())
    assert restarted.policies.fallback is not None


def test_start_waits_a_moment_for_the_last_good_set(tmp_path: Path) -> None:
    """F76: a replica that would judge by fewer policies is not ready until it has looked for the whole set."""
    cluster = Cluster(tmp_path, "mounted")
    cluster.keep_last_good(cluster.start().book)
    cluster.write("spec: {")
    service = make_service(tmp_path / "certs", [])
    service.book = PolicyBook(cluster.folder, knowledge(), lambda: "2026-11-21", live=True)
    before = service.health()["ready"], service.book.serving

    cluster.list_into(service.book)
    finish(service.book.load())

    assert before == (False, VALID_ONES)
    assert (service.health()["ready"], service.book.serving) == (True, LAST_GOOD_SET)


def test_start_does_not_wait_for_ever(tmp_path: Path) -> None:
    """F76: who may not read ConfigMaps serves what is valid."""
    cluster = Cluster(tmp_path, "mounted")
    cluster.write("spec: {")
    service = make_service(tmp_path / "certs", [])
    service.book = PolicyBook(cluster.folder, knowledge(), lambda: "2026-11-21", live=True)

    service.filled -= 11

    assert service.health()["ready"]


def test_edit_that_mends_the_set_is_taken_after_such_a_start(tmp_path: Path) -> None:
    """F76."""
    cluster = Cluster(tmp_path, "mounted")
    cluster.keep_last_good(cluster.start().book)
    cluster.write("spec: {")
    restarted = cluster.start()

    cluster.write(policy("own", "priority: 41"))
    finish(restarted.book.load())

    assert (restarted.book.error, names(restarted)) == (None, {"base", "default", "own"})
    assert {policy.spec.priority for policy in restarted.policies.policies} >= {41}


def test_last_good_set_that_this_version_cannot_read_is_left_out(tmp_path: Path) -> None:
    """Fault 61: it may be of a newer version, after a rollback (docs/reference/requirements.md#promises). F76."""
    cluster = Cluster(tmp_path, "mounted")
    cluster.write("spec: {")
    service = cluster.start()

    service.book.put_config_map(f"gpu-usher/{LAST_GOOD}", {"new.yaml": policy("new", "fieldOfTomorrow: 1")})
    finish(service.book.load())

    assert (service.book.serving, names(service)) == (VALID_ONES, {"base", "default"})


def test_label_on_the_mounted_config_map_does_not_load_it_twice(tmp_path: Path) -> None:
    """F131."""
    cluster = Cluster(tmp_path, "mounted")
    service = cluster.start()

    service.book.put_config_map(f"gpu-usher/{MOUNTED}", {"base.yaml": BASE})

    assert finish(service.book.load()).error is None


def test_deletion_of_the_mounted_config_map_is_let_in_with_a_warning(service: Service) -> None:
    """F131: an uninstallation deletes it."""
    old = config_map({}, MOUNTED)
    wrapped = wrap(None, namespace="gpu-usher", name=MOUNTED, resource=CONFIGMAPS, operation="DELETE", oldObject=old)

    response = json.loads(review(json.dumps(wrapped).encode(), "validate", service).body)["response"]

    assert response["allowed"]
    assert [warning.split(":")[0] for warning in response["warnings"]] == [f"{MOUNTED} is deleted"]
    assert all(len(warning) <= 120 for warning in response["warnings"])


VERSION = "gpu-usher.io/version"


@pytest.mark.parametrize(
    ("before", "after", "checked"),
    [
        pytest.param(__version__, "99.0.0", False, id="upgrade"),
        pytest.param("99.0.0", "99.0.0", True, id="edit of another version's"),
        pytest.param("99.0.0", __version__, True, id="to our own"),
        pytest.param(None, None, True, id="none"),
        pytest.param(__version__, None, True, id="removed"),
    ],
)
def test_upgrade_may_bring_what_only_the_next_version_can_read(
    service: Service, before: Any, after: Any, checked: bool
) -> None:
    """F131: else the replicas of before would refuse the upgrade."""
    old, new = (
        config_map(data, MOUNTED, {}, annotations={VERSION: version} if version else {})
        for data, version in (({}, before), ({"a.yaml": policy("a", "fieldOfTomorrow: 1")}, after))
    )

    message = denial_message(service, new, CONFIGMAPS, operation="UPDATE", oldObject=old)

    assert ("fieldOfTomorrow" in message) is checked
