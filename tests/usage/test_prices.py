# SPDX-License-Identifier: Apache-2.0
"""Prices: of whole GPUs, of slices, and what has none."""

from pathlib import Path

import pytest

from app.cli.usage import read_prices_file, read_since
from app.usage.history import Hold, UseHistory, Window, with_sharing
from app.usage.table import By, UsageRow, usage_report
from app.usage.units import Prices, read_prices
from app.values.errors import BadInput
from tests.builders import knowledge

DOCUMENT = {
    "currency": "EUR",
    "products": {"NVIDIA-H100-80GB-HBM3": {"gpu": 4.0, "1g.10gb": 0.75}, "NVIDIA A100-SXM4-80GB": 2, "Tesla-T4": 0.35},
}


def prices() -> Prices:
    return read_prices(DOCUMENT, knowledge().geometry, "prices.yaml")


@pytest.mark.parametrize(
    ("model", "profile", "price"),
    [
        ("NVIDIA H100 80GB HBM3", "", 4.0),
        ("NVIDIA-H100-80GB-HBM3", "1g.10gb", 0.75),
        ("NVIDIA H100 80GB HBM3", "3g.40gb", 2.0),
        ("NVIDIA A100-SXM4-80GB", "2g.20gb", 2 * 2 / 7),
        ("NVIDIA A100-SXM4-80GB", "9g.90gb", None),
        ("NVIDIA A10", "", None),
        ("Tesla T4", "", 0.35),
        ("", "", None),
    ],
)
def test_slice_costs_its_own_price_or_its_part_of_the_gpu(model: str, profile: str, price: float | None) -> None:
    """F142: 3g.40gb has three of seven compute slices and four of eight memory slices; what has no price is unknown."""
    assert prices().per_hour(model, profile) == (None if price is None else pytest.approx(price))


def row(model: str, *windows: Window) -> UsageRow:
    hold = Hold("t", "p", "n", "GPU-1", "", "", model, False, windows)
    return usage_report(UseHistory(0, 7200, 3600, (hold,)), By.Product, prices=prices()).rows[0]


def test_table_has_the_money_of_the_hours_held_and_of_those_without_activity() -> None:
    """F142: half active in the first hour, idle in the second."""
    used = row("Tesla T4", Window(0, 60, 60, 30.0, 1.0), Window(1, 60, 60, 0.0, 0.0))
    unknown = row("Tesla T4", Window(0, 60))
    unpriced = row("NVIDIA A10", Window(0, 60, 60, 30.0, 1.0))
    assert [used.cost, used.idle_cost] == pytest.approx([0.7, 0.525])
    assert unknown.cost == pytest.approx(0.35)
    assert [unknown.idle_cost, unpriced.cost, unpriced.idle_cost] == [None, None, None]


def test_shared_gpu_has_no_price_that_is_one_pods() -> None:
    """F142: two pods of one GPU do not cost two GPUs."""
    windows = (Window(0, 60, 60, 30.0, 1.0),)
    holds = tuple(Hold("t", name, "n", "GPU-1", "", "", "Tesla T4", False, windows) for name in ("a", "b"))
    (shared,) = usage_report(with_sharing(UseHistory(0, 3600, 3600, holds)), By.Namespace, prices=prices()).rows

    assert (shared.held_hours, shared.cost, shared.idle_cost) == (2.0, None, None)


@pytest.mark.parametrize(
    "text",
    ["[]", "products: {}", "products: {A: -1}", "products: {A: true}", "products: {A: .nan}", "products: {A: {gpu: x}}",
     "price: {A: 1}", "currency: [EUR]\nproducts: {A: 1}", "currency: abcdefghijklmnopq\nproducts: {A: 1}", "{",
     "products: {A: {speed: 0}}", "\x00"],
)  # fmt: skip
def test_file_that_holds_no_prices_is_bad_input(text: str, tmp_path: Path) -> None:
    """F142: the message names the file."""
    path = tmp_path / "prices.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=r"prices\.yaml"):
        read_prices_file(path, knowledge())


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800), ("4w", 2_419_200), ("12h", 43_200), ("90m", 5400)])
def test_since_is_a_duration(text: str, seconds: int) -> None:
    """F141."""
    assert read_since(text) == seconds


@pytest.mark.parametrize("text", ["", "1m", "93d", "-7d", "7", "14w", "9999h", "７d"])
def test_since_that_is_none_or_out_of_bounds_is_bad_input(text: str) -> None:
    """F141."""
    with pytest.raises(BadInput, match="wants 1h to 92d"):
        read_since(text)
