# SPDX-License-Identifier: Apache-2.0
"""The table of faults is complete: each is proven by a test, or has a row for a test on a real cluster."""

import re

from tests.chaos.faults import FAULTS, numbers, on_a_real_cluster, proofs

CELLS = 3
"""Number of cells of a row: the fault, how to try it, what to expect."""


def test_every_fault_of_the_catalogue_is_in_the_table_once() -> None:
    """tests/results/chaos.md shows it."""
    assert [fault.number for fault in FAULTS] == list(range(1, 65))


def test_every_fault_is_proven_by_a_test_or_listed_for_a_real_cluster() -> None:
    proven = frozenset[int]().union(*proofs().values())

    assert {fault.number for fault in FAULTS} - proven - on_a_real_cluster().keys() == set()
    assert proven <= {fault.number for fault in FAULTS}


def test_faults_for_a_real_cluster_have_a_whole_row_and_no_others_have_one() -> None:
    rows = on_a_real_cluster()

    assert {fault.number for fault in FAULTS if fault.cluster} == rows.keys()
    assert {len(re.split(r" \| ", row)) for row in rows.values()} == {CELLS}


def test_numbers_are_read_from_a_docstring() -> None:
    assert numbers("TLS-02, faults 44, 46 and 47: all. Fault 4.") == {44, 46, 47, 4}
    assert numbers("no fault of the GPU; 3 faults; default 5; part 4.5") == frozenset()
