# SPDX-License-Identifier: Apache-2.0
"""DCGM's metrics: the shipped table, and an operator's own table over it."""

import re
from pathlib import Path

import pytest

from app.cluster.files import read_knowledge
from app.knowledge.dcgm import GPUCondition, MetricRule, Severity
from app.values.errors import KnowledgeError
from tests.builders import knowledge


def test_every_metric_is_one_of_dcgm_and_safe_in_a_query() -> None:
    """F72: the names are used in a PromQL pattern as they are."""
    assert all(re.fullmatch(r"DCGM_FI_DEV_[A-Z_]+", metric) for metric in knowledge().dcgm.readings)
    assert all(re.fullmatch(r"[A-Za-z_]+", label) for label in knowledge().dcgm.labels)


def test_both_names_of_a_renamed_field_say_the_same() -> None:
    """F72: DCGM 4.6 renamed fields."""
    readings = knowledge().dcgm.readings

    assert readings["DCGM_FI_DEV_XID_ERRORS"] is readings["DCGM_FI_DEV_XID_ERROR"]
    assert readings["DCGM_FI_DEV_ROW_REMAP_FAILURE"] is readings["DCGM_FI_DEV_ROW_REMAP_FAILED"]


def test_every_class_of_xids_but_the_applications_is_a_condition() -> None:
    """F72: an application's fault is never the GPU's."""
    assert set(Severity) - knowledge().dcgm.conditions.keys() == {Severity.Application}
    assert knowledge().dcgm.conditions[Severity.DrainNow] is GPUCondition.Ill


def test_operator_adds_a_metric_takes_one_away_and_changes_a_class(tmp_path: Path) -> None:
    """F72, F81."""
    (tmp_path / "dcgm.yaml").write_text(
        "readings:\n"
        "  - {name: thermal-violation, remove: true}\n"
        "  - {name: retired, metrics: [DCGM_FI_DEV_RETIRED_DBE], judge: above_zero, severity: ailing, meaning: pages}\n"
        "  - {name: double-bit-ecc, severity: ailing}\n"
        "xid_severities: {watch: null}\n"
        "node_labels: [machine]\n",
        "utf-8",
    )

    dcgm = read_knowledge(tmp_path).dcgm

    assert "DCGM_FI_DEV_THERMAL_VIOLATION" not in dcgm.readings
    assert dcgm.readings["DCGM_FI_DEV_RETIRED_DBE"].rule is MetricRule.AboveZero
    assert dcgm.readings["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"].condition is GPUCondition.Ailing
    assert Severity.Watch not in dcgm.conditions
    assert dcgm.node_labels[:2] == ("machine", "node")


@pytest.mark.parametrize(
    "row",
    [
        "{name: x, metrics: [A], judge: guessed, severity: ill, meaning: m}",
        "{name: x, metrics: [A], judge: above_zero, severity: dead, meaning: m}",
        "{name: x, metrics: [A], judge: above_zero, meaning: m}",
        "{name: x, judge: xid, meaning: m}",
        "{name: x, metrics: ['A\"} or up #'], judge: xid, meaning: m}",
    ],
)
def test_own_row_that_is_none_is_refused(row: str, tmp_path: Path) -> None:
    """F72, F81."""
    (tmp_path / "dcgm.yaml").write_text(f"readings: [{row}]\n", "utf-8")

    with pytest.raises(KnowledgeError):
        read_knowledge(tmp_path)
