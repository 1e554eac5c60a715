# SPDX-License-Identifier: Apache-2.0
"""GPU allocations equal a slow twin, which keeps plain lists of bound pods and of promises."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from app.kube.gpu_usage import GPUUsage
from app.kube.pods import GROUP_LABELS, workload_group
from app.world.gpu_allocations import NOMINATED, PROMISE_SECONDS, GPUAllocations

GPU = "nvidia.com/gpu"
HOLDINGS = st.builds(
    GPUUsage,
    uid=st.sampled_from("abcde"),
    node=st.sampled_from(["n1", "n2", "n3"]),
    name=st.just("team/p"),
    units=st.integers(1, 4).map(lambda units: ((GPU, units),)),
    memory_mib=st.sampled_from([0, 1000, 2500]),
    group=st.sampled_from(["", "job-1", "job-2"]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), HOLDINGS),
        st.tuples(st.just("promise"), HOLDINGS),
        st.tuples(st.just("nominate"), HOLDINGS),
        st.tuples(st.just("unbind"), st.sampled_from("abcde")),
        st.tuples(st.just("drop"), st.sampled_from("abcde")),
        st.tuples(st.just("release"), st.sampled_from(["", *"abcde"])),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0, PROMISE_SECONDS])),
    ),
    max_size=40,
)


@dataclass
class Twin:
    """Lists of the bound pods and of the promises, each with the time of its end."""

    now: float = 0.0
    bound: dict[str, GPUUsage] = field(default_factory=dict)
    promised: list[tuple[GPUUsage, float]] = field(default_factory=list)
    nominated: dict[str, str] = field(default_factory=dict)

    def play(self, verb: str, argument: object) -> None:
        if verb == "wait":
            assert isinstance(argument, float)
            self.now += argument
            return
        uid = argument.uid if isinstance(argument, GPUUsage) else argument
        if verb in ("promise", "nominate") and uid in self.bound:
            return
        if verb in ("unbind", "drop", "put"):
            self.nominated.pop(str(uid), None)
        if verb == "unbind" and any(usage.uid == uid and until < NOMINATED for usage, until in self.promised):
            return
        self.promised = [promise for promise in self.promised if promise[0].uid != uid]
        if verb == "release":
            self.promised = [promise for promise in self.promised if promise[1] > self.now]
        elif verb == "promise" and isinstance(argument, GPUUsage):
            lasts = self.nominated.get(argument.uid) == argument.node
            self.promised.append((argument, NOMINATED if lasts else self.now + PROMISE_SECONDS))
        elif verb == "nominate" and isinstance(argument, GPUUsage):
            self.nominated[argument.uid] = argument.node
            self.promised.append((argument, NOMINATED))
        elif verb == "put" and isinstance(argument, GPUUsage):
            self.bound[argument.uid] = argument
        elif verb in ("drop", "unbind"):
            self.bound.pop(str(uid), None)


def all_usage(twin: Twin) -> list[GPUUsage]:
    return [*twin.bound.values(), *(holding for holding, _ in twin.promised)]


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_occupancy_equals_a_plain_list_of_who_is_where(steps: list[tuple[str, object]]) -> None:
    """F65: each step also names all nodes that it changes.

    See docs/reference/sharing-and-memory.md#memory-budgets.
    """
    allocations, twin = GPUAllocations(), Twin()
    for verb, argument in steps:
        before = {name: allocations.declared(name) for name in ("n1", "n2", "n3")}
        changed = set(_play(allocations, verb, argument, twin.now))
        twin.play(verb, argument)
        after = {name: allocations.declared(name) for name in before}
        assert {name for name in before if before[name] != after[name]} <= changed

    for name in ("n1", "n2", "n3"):
        here = [usage for usage in all_usage(twin) if usage.node == name]
        units = sum(usage.units[0][1] for usage in twin.bound.values() if usage.node == name)
        assert allocations.units(name) == ({GPU: units} if units else {})
        assert sum(allocations.declared(name).values()) == sum(usage.memory_mib * usage.units[0][1] for usage in here)
        without = sum(usage.memory_mib * usage.units[0][1] for usage in here if usage.uid != "a")
        assert sum(allocations.declared(name, {"a"}).values()) == without
    for group in ("job-1", "job-2"):
        assert set(allocations.nodes_of(group)) == {usage.node for usage in all_usage(twin) if usage.group == group}


def _play(allocations: GPUAllocations, verb: str, argument: object, now: float) -> list[str]:
    if verb == "wait":
        return []
    if verb == "release":
        return list(allocations.release(str(argument), now))
    if verb == "promise" and isinstance(argument, GPUUsage):
        return list(allocations.promise(argument, now + PROMISE_SECONDS))
    return list(getattr(allocations, verb)(argument))


def test_nothing_is_left_of_pods_that_are_gone() -> None:
    """Names of nodes, pods and groups must not accumulate."""
    allocations = GPUAllocations()
    holding = GPUUsage("a", "n", "team/p", ((GPU, 1),), 100, "job")
    for index in range(100):
        usage = structs.replace(holding, uid=f"u{index}", node=f"n{index}", group=f"g{index}")
        (allocations.put if index % 2 else lambda one: allocations.promise(one, 9.0))(usage)
        allocations.drop(usage.uid)

    assert not any(getattr(allocations, name) for name in vars(allocations).keys() - {"on_bound"})


def test_group_is_the_widest_that_a_label_names() -> None:
    """F54: the Jobs of a JobSet are one group."""
    labels = {key: str(index) for index, key in enumerate(GROUP_LABELS)}

    assert workload_group("team", labels) == "team/jobset.sigs.k8s.io/jobset-name=0"
    assert workload_group("team", {"batch.kubernetes.io/job-name": "j"}) == "team/batch.kubernetes.io/job-name=j"
    assert workload_group("team", {"app": "x"}) == ""
