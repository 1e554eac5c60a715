# SPDX-License-Identifier: Apache-2.0
"""A thread that computes beside the event loop rests by the work that was done, and loses no item."""

from app.cluster.usage_polling import REST_SECONDS, WORK_SECONDS, pausing


def test_thread_rests_after_each_piece_of_work_and_loses_no_item() -> None:
    """F145: four items of a third of the work before the rest, and one that takes longer by itself."""
    parts = [0.3, 0.3, 0.3, 0.3, 5.0, 0.3]
    done: list[float] = []
    rests: list[tuple[int, float]] = []

    for part in pausing(parts, lambda: sum(done), lambda seconds: rests.append((len(done), seconds))):
        done.append(part * WORK_SECONDS)

    assert done == [part * WORK_SECONDS for part in parts]
    assert rests == [(4, REST_SECONDS), (5, REST_SECONDS)]
