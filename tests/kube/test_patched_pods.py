# SPDX-License-Identifier: Apache-2.0
"""A patched pod is read and ruled on as a new one would be, though its unchanged containers are not read again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.admission.json_patch import Operation
from app.admission.reviewed_pod import begin_review
from app.kube.pods import read_pod
from tests.builders import gpus, pod, setting

LISTS = ("initContainers", "containers", "ephemeralContainers")
CONTAINERS = st.builds(
    lambda amount, value: gpus(amount, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]),
    st.integers(0, 2),
    st.sampled_from(["all", "void"]),
)


@given(st.data())
def test_patched_pod_is_read_as_a_new_one(data: st.DataObject) -> None:
    spec = {name: data.draw(st.lists(CONTAINERS, min_size=1, max_size=3)) for name in LISTS}
    document = {**pod(), "spec": spec}
    context = setting()
    review = begin_review(document, read_pod(document), {}, context)

    for _ in range(4):
        review = review.with_operations([data.draw(operations(review.document))])
        assert review.pod == read_pod(review.document)
        anew = begin_review(review.document, review.pod, {}, context)
        assert (review.gpus, review.ruling.demand.resources) == (anew.gpus, anew.ruling.demand.resources)


@st.composite
def operations(draw: st.DrawFn, document: Any) -> Operation:
    """Draw an operation as our patches have them; a container that is removed moves those behind it."""
    list_name = draw(st.sampled_from(LISTS))
    count = len(document["spec"][list_name])
    if not count:
        return Operation("add", ("spec", list_name, "-"), draw(CONTAINERS))
    path = ("spec", list_name, str(draw(st.integers(0, count - 1))))
    return draw(
        st.sampled_from(
            [
                Operation("add", ("spec", list_name, "-"), draw(CONTAINERS)),
                Operation("replace", (*path, "image"), "other:1"),
                Operation("replace", (*path, "env"), []),
                Operation("remove", path),
            ]
        )
    )
