# SPDX-License-Identifier: Apache-2.0
"""What `--help` says of each verb below its options: examples, and when it exits with 1.

A verb's docstring says what it does, and its options have their own help.
"""

EXAMPLES = """\
gpu-usher serve --demo
gpu-usher serve --snapshot now.json --policies policies/ --port 9443
gpu-usher serve --kubeconfig ~/.kube/config --role admission --shadow
gpu-usher explain pod/train-0 -n team-a
gpu-usher explain deployment/train -n team-a
gpu-usher explain -f pod.yaml --demo -o wide
gpu-usher explain team-a/train-0 --url http://127.0.0.1:8081
gpu-usher doctor --kubeconfig ~/.kube/config
gpu-usher doctor --snapshot now.json --strict
gpu-usher doctor --demo-fleet sick -o json
gpu-usher inventory --demo-fleet mixed
gpu-usher inventory --snapshot now.json -o yaml
gpu-usher inventory --kubeconfig ~/.kube/config --watch
gpu-usher usage --demo --by product
gpu-usher usage --prometheus http://127.0.0.1:9090 --by owner --since 4w
gpu-usher usage --prometheus http://127.0.0.1:9090 -o json
gpu-usher mutate -f pod.yaml --demo --diff
gpu-usher mutate -f train.yaml --snapshot now.json -o json
gpu-usher mutate -f train.yaml --kubeconfig ~/.kube/config --policies policies/ | kubectl apply -f -
gpu-usher plan driver --nodes nvidia.com/gpu.product=Tesla-T4 --to 580.65.06 --snapshot now.json
gpu-usher plan driver --to 535.104.05 --demo-fleet mixed -o json
gpu-usher plan relayout --nodes nvidia.com/mig.capable=true --layout all-1g.10gb --snapshot now.json
gpu-usher plan relayout --layout 3g.40gb:2 --demo-fleet mixed -o yaml
gpu-usher plan mig --snapshot now.json > mig-parted-config.yaml
gpu-usher plan mig --demo-fleet mig
gpu-usher plan mig --nodes pool=mig --kubeconfig ~/.kube/config -o json
gpu-usher plan repack --free places --snapshot now.json
gpu-usher plan repack --free node --nodes pool=a100 --moves 3 --kubeconfig ~/.kube/config -o json
gpu-usher plan repack --demo-fleet weekday
gpu-usher plan right-size --demo-fleet weekday
gpu-usher plan right-size --prometheus http://127.0.0.1:9090 --since 4w
gpu-usher plan node-template -f pod.yaml
gpu-usher plan node-template -f train.yaml --policies policies/ -o json
gpu-usher plan claims --nodes nvidia.com/gpu.product=Tesla-T4 --snapshot now.json
gpu-usher plan claims --demo-fleet weekday -o json
gpu-usher plan claim-templates --snapshot now.json | kubectl apply -f -
gpu-usher plan claim-templates -f pod.yaml -n team-a
gpu-usher policy lint policies/
gpu-usher policy lint
gpu-usher policy test policies/
gpu-usher policy test policies/ -o junit > cases.xml
gpu-usher policy diff policies/ edited/ --snapshot now.json
gpu-usher policy diff policies/ edited/ --demo-fleet mixed --limit 3
gpu-usher policy diff policies/ edited/ --decisions decisions.log -o json
gpu-usher policy replay decisions.log --snapshot now.json --policies edited/ -o json
gpu-usher policy replay decisions.log --demo-fleet mixed --recount
gpu-usher export admission-policies
gpu-usher export admission-policies --policies policies/ | kubectl apply --server-side -f -
gpu-usher schema > policies/schema/gpupolicy.json
gpu-usher schema --crd | kubectl apply -f -
gpu-usher schema --answer plan-driver
gpu-usher scheduler-config --ca certs/ca.crt > scheduler.yaml
gpu-usher scheduler-config --verify scheduler.yaml --snapshot now.json
gpu-usher scheduler-config --for default --ca certs/ca.crt --kubeconfig ~/.kube/config
gpu-usher certs issue
gpu-usher certs issue --certs certs --name gpu-usher.example.com -o json
gpu-usher certs rotate --certs certs
gpu-usher certs rotate --kubeconfig ~/.kube/config
gpu-usher certs show
gpu-usher certs show --url https://127.0.0.1:8443 --ca certs/ca.crt
gpu-usher certs show --secret gpu-usher-tls --kubeconfig ~/.kube/config -o json
gpu-usher certs controller
gpu-usher certs controller --kubeconfig ~/.kube/config --name 127.0.0.1
gpu-usher claims-controller --kubeconfig ~/.kube/config
gpu-usher claims-controller --kubeconfig ~/.kube/config --turn-seconds 5 --probe-port 8080
""".splitlines()
FAILS = {
    "explain": "no node fits now",
    "doctor": "something hurts pods now; with --strict, also where there is advice",
    "mutate": "an object is denied",
    "plan driver": "pods are left that no node of the fleet could serve",
    "plan relayout": "a node cannot have the layout",
    "plan mig": "pods stay without a slice",
    "plan repack": "nothing of the kind can be freed, or a pod that waits finds no place",
    "plan node-template": "no GPU product fits",
    "plan claims": "a node cannot move, as pods on it have no equivalent claim",
    "policy lint": "there are findings",
    "policy test": "a case does not hold",
    "policy diff": "the edit hurts: a pod is newly refused, or left without any node",
    "policy replay": "a decision differs",
    "scheduler-config": "with --verify, something is dangerous or worth a warning",
    "certs show": "it is expired, not yet valid, or does not belong to its key, its CA or the name asked for",
}
"""The meaning of exit code 1, by the words of the verb."""
ERRORS = (
    "2: bad input; stderr says what was found and what is wanted. "
    "3: internal error, or a cluster or service that does not answer."
)


def examples_of(words: str) -> list[str]:
    """Return the examples of a verb."""
    return [example for example in EXAMPLES if f"{example} ".startswith(f"gpu-usher {words} ")]


def epilog(words: str) -> str:
    """Return what follows the options in the help of a verb; click does not wrap the lines after a backspace."""
    fails = f"1: {FAILS[words]}. " if words in FAILS else ""
    return "\n".join(
        ("\b", "Examples:", *(f"  {line}" for line in examples_of(words)), "", f"Exit codes: 0: fine. {fails}{ERRORS}")
    )
