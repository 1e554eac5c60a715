// SPDX-License-Identifier: Apache-2.0

// Command cluster-autoscaler tells which node groups cluster-autoscaler could bring from zero for a pod.
//
// It reads {"groups": [Node, ...], "pods": [Pod, ...]} from standard input, where each Node is the template of a group
// that has no node. For each pod and each group it asks cluster-autoscaler's own simulator, which runs kube-scheduler's
// filters on the template, and writes {pod: {group: refusal}}, with "" for a group that could serve the pod.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	testprovider "k8s.io/autoscaler/cluster-autoscaler/cloudprovider/test"
	"k8s.io/autoscaler/cluster-autoscaler/simulator"
	"k8s.io/autoscaler/cluster-autoscaler/simulator/clustersnapshot/testsnapshot"
	"k8s.io/autoscaler/cluster-autoscaler/simulator/framework"
	"k8s.io/autoscaler/cluster-autoscaler/utils/taints"
)

type question struct {
	Groups []*corev1.Node `json:"groups"`
	Pods   []*corev1.Pod  `json:"pods"`
}

// refusals gives by group why a node of it would not take the pod, "" where it would.
func refusals(groups []*corev1.Node, pod *corev1.Pod) (map[string]string, error) {
	snapshot, _, err := testsnapshot.NewTestSnapshotAndHandle()
	if err != nil {
		return nil, err
	}
	said := map[string]string{}
	for _, template := range groups {
		info, err := templateOf(template)
		if err != nil {
			return nil, err
		}
		if err := snapshot.AddNodeInfo(info); err != nil {
			return nil, err
		}
		said[template.Name] = ""
		if refusal := snapshot.CheckPredicates(pod, info.Node().Name); refusal != nil {
			said[template.Name] = refusal.Error()
		}
	}
	return said, nil
}

// templateOf makes of a group's template what a scale-up from zero judges: a sanitized node with a new name.
func templateOf(template *corev1.Node) (*framework.NodeInfo, error) {
	provider := testprovider.NewTestCloudProviderBuilder().
		WithMachineTemplates(map[string]*framework.NodeInfo{template.Name: framework.NewNodeInfo(template, nil)}).Build()
	provider.AddAutoprovisionedNodeGroup(template.Name, 0, 10, 0, template.Name)
	for _, group := range provider.NodeGroups() {
		info, err := simulator.SanitizedTemplateNodeInfoFromNodeGroup(group, nil, taints.TaintConfig{})
		if err != nil {
			return nil, err
		}
		return info, nil
	}
	return nil, fmt.Errorf("no node group %s", template.Name)
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	answer := map[string]map[string]string{}
	for _, pod := range asked.Pods {
		said, err := refusals(asked.Groups, pod)
		if err != nil {
			return err
		}
		answer[pod.Name] = said
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster-autoscaler:", err)
		os.Exit(1)
	}
}
