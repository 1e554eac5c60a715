# SPDX-License-Identifier: Apache-2.0
"""Coloured tiles: whose each held cell is, or how active, and never more than is known."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.cluster.usage_polling import UseReading
from app.demo.sample_fleets import demo_fleet
from app.usage.table import HeldUnit
from app.web.api import create_web_app
from app.web.fleet_map import FleetMap
from app.web.views.node_tile import GPUCell, Tile, tile_of
from app.web.views.tile_colours import IDLE, SEVERAL, SLOTS, STEPS, UNKNOWN, Colouring, TileColours, slots_of
from tests.api.conftest import Ask
from tests.builders import gpus, make_service, node_document, pod
from tests.usage.polls import with_demo_usage
from tests.web.html import Reader
from tests.web.test_fleet_map import finish
from tests.web.test_web_routes import read

SLOTS_OF = {"red": 0, "blue": 3}
FLEETS = ("mixed", "weekday", "mig", "shared", "dra", "gpucluster", "dgx", "sick")


def tile(folder: Path, holders: dict[str, int], units: tuple[HeldUnit, ...] = (), **made: Any) -> Tile:
    """Make a tile of node n, on which pods named namespace/name hold so many GPUs, in the colours of SLOTS_OF."""
    by = Colouring.Activity if units or made.pop("activity", False) else Colouring.Namespace
    state = make_service(folder, [node_document("n", offers={"nvidia.com/gpu": 8}, **made)]).state
    for key, amount in holders.items():
        holder = pod(gpus(amount), nodeName="n")
        namespace, name = key.split("/")
        holder["metadata"] |= {"uid": key, "name": name, "namespace": namespace}
        state.put_pod({**holder, "status": {"phase": "Running"}})
    node = state.nodes["n"]
    colours = TileColours(by, SLOTS_OF, {"n": units})
    return tile_of(node, state.usage_on("n"), state.requested_on("n"), state.knowledge, {}, colours)


def unit(key: str, number: int, activity: float | None, idle: float = 0.0, **more: Any) -> HeldUnit:
    namespace, name = key.split("/")
    return HeldUnit(namespace, name, (f"GPU-{number}", ""), "", more.get("shared", False), activity, idle)


def held(shown: Tile) -> list[tuple[str, int, str]]:
    """List colour, number of cells and text of what is held."""
    return [(run.colour, run.count, run.text) for run in shown.runs if run.cell in (GPUCell.Used, GPUCell.Shared)]


def test_held_cells_have_the_colour_and_letter_of_their_namespace(tmp_path: Path) -> None:
    """F148: also of a namespace without a colour of its own; free cells have none."""
    shown = tile(tmp_path, {"red/a": 2, "blue/b": 1, "red/c": 1, "grey/d": 1})

    assert held(shown) == [("c3", 1, "D"), ("c8", 1, "+"), ("c0", 3, "A")]
    assert [(run.colour, run.count) for run in shown.runs if run.cell is GPUCell.Free] == [("", 3)]
    assert "; red 3; blue 1; grey 1" in shown.words


def test_shared_gpus_are_of_one_namespace_or_of_several(tmp_path: Path) -> None:
    """F148: which GPU whose share is on is not known."""
    shared: dict[str, Any] = {"product": "NVIDIA-A10-SHARED", "labels": {"nvidia.com/gpu.replicas": "4"}}

    assert held(tile(tmp_path, {"red/a": 2}, **shared))[0] == ("c0", 2, "2/8")
    assert held(tile(tmp_path, {"red/a": 1, "blue/b": 1}, **shared))[0] == (SEVERAL.colour, 2, "2/8")
    assert held(tile(tmp_path, {}, **shared)) == [("", 2, "0/8")]


def test_held_cells_have_the_activity_of_the_last_poll(tmp_path: Path) -> None:
    """F148: the idle ones first; a GPU without a figure, and that of a pod that has come since, are unknown."""
    units = (
        unit("red/a", 1, 0.9), unit("red/a", 2, 0.0, idle=900.0), unit("red/a", 3, 0.0), unit("red/a", 4, None),
        unit("red/gone", 5, 0.9),
    )  # fmt: skip
    shown = tile(tmp_path, {"red/a": 4, "blue/new": 1}, units)

    assert held(shown) == [("a0", 1, "0"), ("a1", 1, "<25"), ("a4", 1, "75+"), ("q", 2, "?")]
    words = "1 idle for certain; 1 less than 25 % active; 1 75 % and more; 1 activity unknown"
    assert shown.words.endswith(words)


@pytest.mark.parametrize(
    ("activity", "colour"), [(0.0, "a1"), (0.249, "a1"), (0.25, "a2"), (0.5, "a3"), (0.75, "a4"), (1.0, "a4")]
)
def test_steps_of_activity_begin_where_their_words_say(tmp_path: Path, activity: float, colour: str) -> None:
    """F148."""
    assert held(tile(tmp_path, {"red/a": 1}, (unit("red/a", 1, activity),)))[0][0] == colour


def test_without_use_every_held_cell_is_unknown(tmp_path: Path) -> None:
    """F148."""
    assert held(tile(tmp_path, {"red/a": 3}, activity=True)) == [(UNKNOWN.colour, 3, "?")]


def test_shared_gpu_is_as_active_as_its_most_active_holder_says(tmp_path: Path) -> None:
    """F148: it is drawn once, whatever the number of its pods."""
    shared: dict[str, Any] = {"product": "NVIDIA-A10-SHARED", "labels": {"nvidia.com/gpu.replicas": "4"}}
    units = (unit("red/a", 1, 0.1, shared=True), unit("blue/b", 1, 0.8, shared=True))

    assert held(tile(tmp_path, {"red/a": 1, "blue/b": 1}, units, **shared)) == [("a4", 1, "2/8"), ("", 1, "")]


def test_colour_of_a_namespace_stays_when_others_come() -> None:
    """F148: but where two want the same; more namespaces than colours leave out those on the fewest nodes."""
    few = slots_of({"vision": 3, "language": 2})
    more = slots_of({"vision": 3, "language": 2, "search": 9})
    many = slots_of({f"n{index}": index for index in range(20)})

    assert few.items() <= more.items()
    assert len(set(more.values())) == 3
    assert set(many) == {f"n{index}" for index in range(12, 20)}
    assert sorted(many.values()) == list(range(SLOTS))


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("by", [Colouring.Namespace, Colouring.Activity])
def test_colours_change_no_cell_of_the_map(tmp_path: Path, fleet: str, by: Colouring) -> None:
    """F148: of every sample fleet, each tile has the cells that it has without colours, and every held one a colour."""
    service = with_demo_usage(make_service(tmp_path, demo_fleet(fleet)))
    plain = FleetMap(service.state)
    finish(plain.catch_up())
    colours = plain.colours(by, service.usage.reading())
    for name, (shown, _) in plain.tiles.items():
        coloured = plain._tile(service.nodes[name], colours)

        assert cells(coloured) == cells(shown), name
        assert all(run.colour for run in coloured.runs if run.cell is GPUCell.Used)
        assert not any(run.colour for run in shown.runs)


def cells(shown: Tile) -> Counter[tuple[GPUCell, int]]:
    """Count the cells of a tile by kind and width."""
    counts: Counter[tuple[GPUCell, int]] = Counter()
    for run in shown.runs:
        counts[run.cell, run.width] += run.count
    return counts


def test_plain_map_is_asked_for_no_colours(tmp_path: Path) -> None:
    """F148: the words of the parameter, and anything else, which is the plain map."""
    assert FleetMap(make_service(tmp_path).state).colours(Colouring.State, UseReading()) is None


@pytest.mark.parametrize(("colour", "css"), [("namespace", "u c"), ("activity", "u a"), ("state", ""), ("<b>", "")])
def test_address_says_what_the_map_is_coloured_by(tmp_path: Path, ask: Ask, colour: str, css: str) -> None:
    """F148: with a legend in words, and links that keep it."""
    service = with_demo_usage(make_service(tmp_path, demo_fleet("weekday")))
    page = read(ask(create_web_app(service), "GET", "/", params={"colour": colour, "product": "Tesla-T4"}))
    coloured = [cell for cell in page.all("i") if css and cell.attributes["class"].startswith(css)]
    words = page.one("ul", class_="legend").text
    links = [link.attributes["href"] for link in page.all("a")]

    assert bool(coloured) is bool(css)
    assert all(cell.text for cell in coloured)
    assert ("vision" in words, IDLE.words in words) == (colour == "namespace", colour == "activity")
    assert any(f"colour={colour}" in link and "as=table" in link for link in links) is bool(css)
    assert _selected(page) == (colour if css else "state")


def _selected(page: Reader) -> str:
    (chosen,) = [
        option.text
        for option in page.all("option")
        if option.text in {colouring.value for colouring in Colouring} and "selected" in option.attributes
    ]
    return chosen


def test_legend_has_every_mark_of_activity_once() -> None:
    legend = TileColours(Colouring.Activity, {}, {}).legend

    assert legend == (IDLE, *(mark for _, mark in STEPS), UNKNOWN)
    assert len({mark.colour for mark in legend}) == len({mark.words for mark in legend}) == len(legend)
