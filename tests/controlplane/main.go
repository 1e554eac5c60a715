// SPDX-License-Identifier: Apache-2.0

// Command controlplane is the real control plane in one binary: its first argument says which part runs.
//
// One link instead of five keeps the cold build short; the parts themselves are upstream's, unchanged.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 newKubelet,
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 cmd.NewDefaultKubectlCommand,
	"noop-extender":           newNoopExtender,
}

// newKubelet makes the kubelet's command, which takes a context from Kubernetes 1.34 on.
func newKubelet() *cobra.Command {
	switch command := any(kubelet.NewKubeletCommand).(type) {
	case func() *cobra.Command:
		return command()
	case func(context.Context) *cobra.Command:
		return command(context.Background())
	}
	panic("kubelet: NewKubeletCommand has another signature")
}

func main() {
	part := ""
	if len(os.Args) > 1 {
		part = os.Args[1]
	}
	os.Args = append([]string{part}, os.Args[min(2, len(os.Args)):]...)
	if part == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := parts[part]
	if !known {
		fmt.Fprintf(os.Stderr, "controlplane: got %q, wants etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl, noop-extender or dra-driver\n", part)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
