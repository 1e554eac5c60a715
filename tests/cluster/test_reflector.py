# SPDX-License-Identifier: Apache-2.0
"""The reflector against an API server that fails: its requests, its index, and how it recovers."""

from typing import Any

import pytest
from aiohttp import web

from tests.cluster.fake_apiserver import status, until
from tests.cluster.reflector_scene import Scene, play, thing


def test_lists_in_pages_and_watches_from_there_with_bookmarks() -> None:
    """CACHE-01: the list has no resourceVersion; the watch has a time limit and asks for bookmarks."""

    async def test(scene: Scene) -> None:
        await scene.following()
        await scene.agrees()

        assert [query.get("limit") for query in scene.api.lists] == ["500", "500", "500"]
        assert all("resourceVersion" not in query for query in scene.api.lists)
        [watch] = scene.api.watches
        assert watch["allowWatchBookmarks"] == "true"
        assert watch["resourceVersion"] == str(scene.api.version)
        assert 240 <= int(watch["timeoutSeconds"]) <= 300

    play(test, *(thing(f"t{index}") for index in range(1100)))


def test_events_are_folded_in() -> None:
    async def test(scene: Scene) -> None:
        await scene.following()
        scene.api.put(thing("b", colour="blue"))
        scene.api.put(thing("a", colour="red"))
        scene.api.delete("b")
        scene.api.put(thing("c"))
        await scene.agrees()

        assert scene.index == {"a": {"colour": "red"}, "c": {}}
        assert scene.reflector.uids == {"a": "uid-a", "c": "uid-c"}

    play(test, thing("a"))


def test_nothing_of_a_list_counts_before_all_of_it_came() -> None:
    """Fault 6: page 2 of 3 fails; the whole list is read again."""

    async def test(scene: Scene) -> None:
        await until("the list failed", lambda: scene.pauses)
        assert not scene.index
        assert not scene.reflector.synced
        await scene.agrees()

        assert len(scene.api.lists) == 2 + 3

    play(test, *(thing(f"t{index}") for index in range(1100)), faults=(None, status(500)))


def test_expired_page_token_starts_the_list_again_in_one_piece() -> None:
    """CACHE-02: this is the third form of 410."""

    async def test(scene: Scene) -> None:
        await scene.following()
        await scene.agrees()

        assert [query.get("limit") for query in scene.api.lists] == ["500", "500", None]
        assert not scene.pauses

    play(test, *(thing(f"t{index}") for index in range(1100)), faults=(None, status(410)))


async def _check_relist(scene: Scene) -> None:
    """Check that a 410 led to one new list, of which only the difference was applied to the index."""
    await until("it listed again", lambda: scene.count("gpu_usher_relists_total") == 2)
    await scene.agrees()

    assert len(scene.api.lists) == 2
    assert scene.count("gpu_usher_watch_restarts_total", reason="gone") == 1


def test_410_as_an_event_lists_again_and_swaps_the_difference() -> None:
    """CACHE-02: this is the second form of 410."""

    async def test(scene: Scene) -> None:
        await scene.following()
        del scene.api.objects["a"]
        scene.api.objects["b"] = thing("b")
        expired = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "message": "too old"}
        scene.api.say("ERROR", expired)
        await _check_relist(scene)

        assert scene.index == {"b": {}}

    play(test, thing("a"))


def test_410_as_a_status_lists_again_and_serves_the_old_until_then() -> None:
    """CACHE-02, fault 4: this is the first form of 410."""

    async def test(scene: Scene) -> None:
        seen: list[bool] = []

        def look(_request: web.Request) -> None:
            seen.append("a" in scene.index)

        await scene.following()
        scene.api.faults.extend([status(410), look])
        scene.api.hang_up()
        await _check_relist(scene)

        assert seen == [True]

    play(test, thing("a"))


def test_watch_goes_on_from_the_last_bookmark() -> None:
    async def test(scene: Scene) -> None:
        await scene.following()
        scene.api.say("BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": "777"}})
        scene.api.hang_up()
        await until("it watches again", lambda: len(scene.api.watches) == 2)

        assert scene.api.watches[1]["resourceVersion"] == "777"
        assert len(scene.api.lists) == 1
        assert "a" in scene.index

    play(test, thing("a"))


def test_silent_stream_is_given_up_and_opened_again() -> None:
    """CACHE-04, fault 3: a half-open connection sends nothing for ever."""

    async def test(scene: Scene) -> None:
        await until("it watches again", lambda: len(scene.api.watches) >= 2)

        assert scene.count("gpu_usher_watch_restarts_total", reason="connection") >= 1
        assert len(scene.api.lists) == 1

    play(test, thing("a"), silence=0.05)


def test_stream_that_closes_at_once_again_and_again_is_not_hammered() -> None:
    """Fault 5: the informer of the official Python client opened 3,801 watches in 2 s in this case."""

    async def test(scene: Scene) -> None:
        for count in range(1, 8):
            await until("it watches", lambda count=count: len(scene.api.watches) == count and scene.api.watched)  # type: ignore[misc]
            scene.api.hang_up()
        await until("it paused", lambda: len(scene.pauses) >= 7)

        assert scene.pauses[:7] == [pytest.approx(seconds) for seconds in (1.2, 2.4, 4.8, 9.6, 19.2, 30, 30)]

    play(test)


def test_line_that_is_no_event_makes_it_list_again() -> None:
    """Fault 8."""

    async def test(scene: Scene) -> None:
        await scene.following()
        del scene.api.objects["a"]
        scene.api.send(b'{"type":"ADDED","obj\n')
        await until("it lists again", lambda: len(scene.api.lists) == 2)
        await scene.agrees()

        assert scene.count("gpu_usher_watch_restarts_total", reason="unreadable") == 1

    play(test, thing("a"))


@pytest.mark.parametrize(
    "labels", [5, ["a"], {"a": 1}, {"a": None}, {"a": {"b": "c"}}], ids=["number", "list", "int", "null", "object"]
)
def test_object_of_an_odd_shape_is_counted_and_no_longer_trusted(labels: Any) -> None:
    """Fault 8: the other objects stay, in the list as in the watch."""

    async def test(scene: Scene) -> None:
        await scene.following()
        await until("the list is in", lambda: scene.index == {"a": {}, "b": {}})
        odd = {"kind": "Thing", "metadata": {"name": "a", "uid": "uid-a", "labels": labels}}
        scene.api.say("MODIFIED", odd)
        scene.api.put(thing("c"))
        await until("c is in", lambda: "c" in scene.index)

        assert scene.index == {"b": {}, "c": {}}
        assert scene.count("gpu_usher_unreadable_objects_total") == 2
        assert len(scene.api.lists) == 1

    listed = {"kind": "Thing", "metadata": {"name": "z", "uid": "uid-z", "labels": labels}}
    play(test, thing("a"), thing("b"), listed)


def test_unknown_fields_and_null_maps_are_no_trouble() -> None:
    """Fault 7: newer API servers send more fields, and Go writes null for an empty map."""

    async def test(scene: Scene) -> None:
        await scene.following()
        strange = thing("a") | {"spec": {"new": [1, {"deep": None}]}, "status": None, "more": "x"}
        strange["metadata"] |= {"labels": None, "managedFields": [{"fieldsV1": {}}]}
        scene.api.put(strange)
        await until("a is in", lambda: "a" in scene.index)

        assert scene.index == {"a": {}}
        assert not scene.count("gpu_usher_unreadable_objects_total")

    play(test)


def test_late_word_of_a_deletion_does_not_touch_what_was_made_since_under_the_name() -> None:
    """P25, CACHE-07: objects are removed by UID."""

    async def test(scene: Scene) -> None:
        await scene.following()
        scene.api.put(thing("a", "new", colour="red"))
        scene.api.say("DELETED", thing("a", "old"))
        scene.api.put(thing("b"))
        await until("b is in", lambda: "b" in scene.index)

        assert scene.index == {"a": {"colour": "red"}, "b": {}}

    play(test, thing("a", "old"))


def test_refused_kind_is_tried_again_at_long_intervals_and_says_why() -> None:
    async def test(scene: Scene) -> None:
        await until("it gave up the short intervals", lambda: len(scene.pauses) >= 6)
        assert scene.reflector.refusal == "403: no: 403"
        assert scene.pauses[5] == 30

        scene.api.faults.clear()
        await scene.following()
        assert scene.reflector.refusal is None

    play(test, thing("a"), faults=(status(403),) * 100_000)
