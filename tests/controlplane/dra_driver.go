// SPDX-License-Identifier: Apache-2.0

//go:build !without_dra

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

func init() { parts["dra-driver"] = newDRADriver }

// driverFile is what the driver publishes and what it gives to containers; it reads the file again when it changes.
type driverFile struct {
	// Driver is the driver's name, such as gpu.nvidia.com.
	Driver string `json:"driver"`
	// Slices are published as the pool of the node.
	Slices []resourceslice.Slice `json:"slices"`
	// Files are the device files on the node of each device, by its name.
	Files map[string][]string `json:"files"`
	// Failure is the error with which preparing a claim fails; empty: it succeeds.
	Failure string `json:"failure"`
}

// newDRADriver makes a DRA driver of a file: Kubernetes' own library for kubelet plugins, on which the vendors' drivers are
// built too, publishes the devices and answers the kubelet; a container gets the device files of its claims by CDI.
func newDRADriver() *cobra.Command {
	flags := flag.NewFlagSet("dra-driver", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "file")
	node := flags.String("node-name", "", "name of the Node")
	file := flags.String("file", "", "the driver's file, JSON")
	return &cobra.Command{
		Use:                "dra-driver",
		DisableFlagParsing: true,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := flags.Parse(arguments); err != nil {
				return err
			}
			config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			return runDRADriver(command.Context(), client, *node, *file)
		},
	}
}

func runDRADriver(ctx context.Context, client kubernetes.Interface, node, file string) error {
	driver := &draDriver{node: node, file: file}
	content, err := driver.read()
	if err != nil {
		return err
	}
	folder := filepath.Join(kubeletplugin.KubeletPluginsDir, content.Driver)
	for _, path := range []string{folder, cdiFolder} {
		if err := os.MkdirAll(path, 0o750); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, driver, kubeletplugin.DriverName(content.Driver), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(folder))
	if err != nil {
		return err
	}
	defer helper.Stop()
	var published time.Time
	for ; ; time.Sleep(lookEvery) {
		state, err := os.Stat(file)
		if err != nil {
			return err
		}
		if state.ModTime().Equal(published) {
			continue
		}
		if content, err = driver.read(); err != nil {
			return err
		}
		pool := map[string]resourceslice.Pool{node: {Slices: content.Slices}}
		if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pool}); err != nil {
			return err
		}
		published = state.ModTime()
	}
}

const (
	cdiFolder = "/var/run/cdi"
	lookEvery = 200 * time.Millisecond
)

type draDriver struct{ node, file string }

func (d *draDriver) read() (driverFile, error) {
	var content driverFile
	text, err := os.ReadFile(d.file)
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	return content, err
}

// HandleError is called when publishing fails in the background, such as for a slice that the API server refuses.
func (d *draDriver) HandleError(_ context.Context, err error, message string) {
	klog.ErrorS(err, message)
}

// PrepareResourceClaims writes the CDI file of each claim, with one CDI device for each allocated device.
func (d *draDriver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	content, err := d.read()
	if err != nil {
		return nil, err
	}
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		results[claim.UID] = content.prepare(claim)
	}
	return results, nil
}

// UnprepareResourceClaims removes the CDI files.
func (d *draDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	content, err := d.read()
	if err != nil {
		return nil, err
	}
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		err := os.Remove(content.cdiFile(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (c driverFile) cdiFile(claim types.UID) string {
	return filepath.Join(cdiFolder, fmt.Sprintf("%s-%s.json", c.Driver, claim))
}

func (c driverFile) prepare(claim *resource.ResourceClaim) kubeletplugin.PrepareResult {
	if c.Failure != "" {
		return kubeletplugin.PrepareResult{Err: errors.New(c.Failure)}
	}
	var devices []kubeletplugin.Device
	var listed []map[string]any
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != c.Driver {
			continue
		}
		name := fmt.Sprintf("%s-%d", claim.UID, len(listed))
		var files []map[string]string
		for _, path := range c.Files[result.Device] {
			files = append(files, map[string]string{"path": path})
		}
		// CDI does not allow a device without an edit; the variable says what the claim was given.
		variable := fmt.Sprintf("DRA_%d=%s %s", len(listed), result.Request, result.Device)
		listed = append(listed, map[string]any{
			"name":           name,
			"containerEdits": map[string]any{"env": []string{variable}, "deviceNodes": files},
		})
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			ShareID:      result.ShareID,
			CDIDeviceIDs: []string{c.Driver + "/claim=" + name},
		})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": c.Driver + "/claim", "devices": listed})
	if err == nil {
		err = os.WriteFile(c.cdiFile(claim.UID), text, 0o644)
	}
	return kubeletplugin.PrepareResult{Devices: devices, Err: err}
}
