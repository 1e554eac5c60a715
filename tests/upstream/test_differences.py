# SPDX-License-Identifier: Apache-2.0
"""What the comparison of two runs of Kubernetes' end-to-end suite reads from their reports (F27)."""

from tests.upstream.__main__ import differences, read, write

REPORT = """<testsuites><testsuite>
<testcase name="[It] spreads pods" status="{spread}">{body}</testcase>
<testcase name="[It] runs a pod"></testcase>
<testcase name="[It] wants a cloud"><skipped message="skipped - no cloud"></skipped></testcase>
<testcase name="[It] was not chosen"><skipped message="skipped"></skipped></testcase>
<testcase name="[SynchronizedBeforeSuite]"></testcase>
</testsuite></testsuites>"""
ALONE = REPORT.format(spread="passed", body="")
BESIDE = REPORT.format(spread="failed", body="<failure>too many on one node</failure>")


def test_report_has_the_tests_that_were_chosen() -> None:
    """F27."""
    assert read(ALONE) == {"spreads pods": "passed", "runs a pod": "passed", "wants a cloud": "skipped"}


def test_test_that_ends_otherwise_is_a_difference() -> None:
    """F27: also one that was run in one of the two alone."""
    without = {"spreads pods": "passed", "only here": "passed", **read(ALONE)}

    assert differences(without, read(BESIDE)) == [
        ("only here", "passed", "not run"),
        ("spreads pods", "passed", "failed"),
    ]
    assert differences(without, without) == []


def test_page_counts_each_leg_and_names_each_difference() -> None:
    """F27."""
    page = write({"none": read(ALONE), "every-pod": read(BESIDE)}, 600, "spreads")

    assert "| every-pod | 1 | 1 | 1 |" in page
    assert "| every-pod | spreads pods | passed | failed |" in page
