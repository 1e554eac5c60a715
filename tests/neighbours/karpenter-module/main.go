// SPDX-License-Identifier: Apache-2.0

// Command karpenter tells which EC2 instance types Karpenter would launch for a pod.
//
// It reads {"instances": [...], "pools": {name: NodePool}, "pods": [Pod, ...]} from standard input and asks
// Karpenter's own provisioner, with instance types as the AWS provider makes them from what EC2's API tells of each
// type. It writes {pod: {"pool": …, "types": [...], "refusal": …}}. Each pod is asked for in a cluster without nodes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	awsv1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	awsoptions "github.com/aws/karpenter-provider-aws/pkg/operator/options"
	"github.com/aws/karpenter-provider-aws/pkg/providers/instancetype"
	"github.com/awslabs/operatorpkg/status"
	"github.com/go-logr/logr"
	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	fakeprovider "sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

const (
	region = "us-east-1"
	zone   = "us-east-1a"
)

// instance is what EC2's API tells of an instance type, in its units.
type instance struct {
	Type         string `json:"type"`
	CPUs         int32  `json:"cpus"`
	MemoryMiB    int64  `json:"memory_mib"`
	GPU          string `json:"gpu"`
	Manufacturer string `json:"manufacturer"`
	Count        int32  `json:"count"`
	GPUMemoryMiB int32  `json:"gpu_memory_mib"`
}

type question struct {
	Instances []instance                 `json:"instances"`
	Pools     map[string]karpv1.NodePool `json:"pools"`
	Pods      []*corev1.Pod              `json:"pods"`
}

type answer struct {
	Pool    string   `json:"pool"`
	Types   []string `json:"types"`
	Refusal string   `json:"refusal"`
}

// describe makes the AWS provider's own instance type, offered on demand in one zone.
func describe(ctx context.Context, asked instance) *cloudprovider.InstanceType {
	info := ec2types.InstanceTypeInfo{
		InstanceType:          ec2types.InstanceType(asked.Type),
		SupportedUsageClasses: []ec2types.UsageClassType{ec2types.UsageClassTypeOnDemand},
		Hypervisor:            ec2types.InstanceTypeHypervisorNitro,
		ProcessorInfo: &ec2types.ProcessorInfo{
			Manufacturer:           lo.ToPtr("Intel"),
			SupportedArchitectures: []ec2types.ArchitectureType{ec2types.ArchitectureTypeX8664},
		},
		VCpuInfo:   &ec2types.VCpuInfo{DefaultVCpus: &asked.CPUs},
		MemoryInfo: &ec2types.MemoryInfo{SizeInMiB: &asked.MemoryMiB},
		NetworkInfo: &ec2types.NetworkInfo{
			DefaultNetworkCardIndex:   lo.ToPtr[int32](0),
			Ipv4AddressesPerInterface: lo.ToPtr[int32](30),
			MaximumNetworkInterfaces:  lo.ToPtr[int32](8),
			NetworkCards:              []ec2types.NetworkCardInfo{{MaximumNetworkInterfaces: lo.ToPtr[int32](8)}},
		},
	}
	if asked.GPU != "" {
		memory := &ec2types.GpuDeviceMemoryInfo{SizeInMiB: &asked.GPUMemoryMiB}
		info.GpuInfo = &ec2types.GpuInfo{Gpus: []ec2types.GpuDeviceInfo{
			{Name: &asked.GPU, Manufacturer: &asked.Manufacturer, Count: &asked.Count, MemoryInfo: memory},
		}}
	}
	zones := []awsv1.ZoneInfo{{Zone: zone, ZoneID: "use1-az1"}}
	made := instancetype.NewInstanceType(
		ctx, info, region, []string{zone}, zones, nil, nil, nil, nil, nil, nil, nil, nil, nil, awsv1.AMIFamilyAL2023, nil)
	offering := &cloudprovider.Offering{Available: true, Price: float64(asked.Count + 1)}
	offering.Requirements = scheduling.NewLabelRequirements(map[string]string{
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand, corev1.LabelTopologyZone: zone,
	})
	made.Offerings = cloudprovider.Offerings{offering}
	return made
}

// clusterOf is an API server in memory with the node pools and one pod that kube-scheduler could not place.
func clusterOf(pools map[string]karpv1.NodePool, pod *corev1.Pod) client.Client {
	pod = pod.DeepCopy()
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
	}
	objects := []client.Object{pod}
	for name, pool := range pools {
		pool.Name = name
		pool.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
		pool.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
		objects = append(objects, &pool)
	}
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		Build()
}

// cloud offers instance types to node pools of the AWS provider; nothing is launched.
type cloud struct{ *fakeprovider.CloudProvider }

func (cloud) GetSupportedNodeClasses() []status.Object { return []status.Object{&awsv1.EC2NodeClass{}} }

func provision(ctx context.Context, asked question, pod *corev1.Pod) (answer, error) {
	cluster := clusterOf(asked.Pools, pod)
	provider := cloud{fakeprovider.NewCloudProvider()}
	for _, it := range asked.Instances {
		provider.InstanceTypes = append(provider.InstanceTypes, describe(ctx, it))
	}
	recorder := events.NewRecorder(record.NewFakeRecorder(100))
	now := clock.RealClock{}
	provisioner := provisioning.NewProvisioner(
		cluster, recorder, provider, state.NewCluster(now, cluster, provider), now, nil, nil)
	if err := provisioner.Validate(ctx, pod); err != nil {
		return answer{Refusal: err.Error()}, nil
	}
	results, err := provisioner.Schedule(ctx)
	if err != nil {
		return answer{}, err
	}
	for _, refusal := range results.PodErrors {
		return answer{Refusal: refusal.Error()}, nil
	}
	for _, claim := range results.NewNodeClaims {
		names := lo.Map(claim.InstanceTypeOptions, func(it *cloudprovider.InstanceType, _ int) string { return it.Name })
		sort.Strings(names)
		return answer{Pool: claim.NodePoolName, Types: names}, nil
	}
	return answer{Refusal: "Karpenter did not look at the pod"}, nil
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	ctx := log.IntoContext(context.Background(), logr.Discard())
	ctx = options.ToContext(ctx, &options.Options{
		IgnoreDRARequests: true, CPURequests: 1000, PreferencePolicy: options.PreferencePolicyRespect,
	})
	ctx = awsoptions.ToContext(ctx, &awsoptions.Options{})
	answers := map[string]answer{}
	for _, pod := range asked.Pods {
		said, err := provision(ctx, asked, pod)
		if err != nil {
			return err
		}
		answers[pod.Name] = said
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter:", err)
		os.Exit(1)
	}
}
