// SPDX-License-Identifier: Apache-2.0

// The kubelet's half of the device plugin API, for a test of a device plugin without a kubelet.
//
// It serves the kubelet's socket, watches every plugin that registers, and prints one JSON object a line: the devices
// of a resource whenever the plugin lists them, and the answer to each line `allocate RESOURCE COUNT` on standard
// input. It ends with standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Line is what is printed: `Devices` is device → health, `Answer` is that of an allocation for one container.
type Line struct {
	Resource string                         `json:"resource"`
	Devices  map[string]string              `json:"devices,omitempty"`
	Answer   *api.ContainerAllocateResponse `json:"answer,omitempty"`
	Error    string                         `json:"error,omitempty"`
}

// plugin is what is known of one resource.
type plugin struct {
	client  api.DevicePluginClient
	devices []string
}

type kubelet struct {
	api.UnimplementedRegistrationServer
	mutex   sync.Mutex
	plugins map[string]*plugin
	output  *json.Encoder
}

func (k *kubelet) print(line Line) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if err := k.output.Encode(line); err != nil {
		log.Fatal(err)
	}
}

// Register answers at once, as the kubelet does, and watches the plugin from then on.
func (k *kubelet) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	endpoint := "unix:" + filepath.Join(api.DevicePluginPath, request.Endpoint)
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	registered := &plugin{client: api.NewDevicePluginClient(connection)}
	k.mutex.Lock()
	k.plugins[request.ResourceName] = registered
	k.mutex.Unlock()
	go k.watch(request.ResourceName, registered)
	return &api.Empty{}, nil
}

func (k *kubelet) watch(resource string, watched *plugin) {
	stream, err := watched.client.ListAndWatch(context.Background(), &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		health := map[string]string{}
		healthy := []string{}
		for _, device := range list.Devices {
			health[device.ID] = device.Health
			if device.Health == api.Healthy {
				healthy = append(healthy, device.ID)
			}
		}
		k.mutex.Lock()
		watched.devices = healthy
		k.mutex.Unlock()
		k.print(Line{Resource: resource, Devices: health})
	}
	k.print(Line{Resource: resource, Error: err.Error()})
}

// allocate asks for the devices that the plugin prefers, then for these, as the kubelet does for a container.
func (k *kubelet) allocate(resource string, count int) (*api.ContainerAllocateResponse, error) {
	k.mutex.Lock()
	asked := k.plugins[resource]
	k.mutex.Unlock()
	if asked == nil {
		return nil, fmt.Errorf("no plugin has registered %s", resource)
	}
	ctx := context.Background()
	preferred, err := asked.client.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: asked.devices, AllocationSize: int32(count)},
		},
	})
	if err != nil {
		return nil, err
	}
	answers, err := asked.client.Allocate(ctx, &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{
			{DevicesIds: preferred.ContainerResponses[0].DeviceIDs},
		},
	})
	if err != nil {
		return nil, err
	}
	return answers.ContainerResponses[0], nil
}

func main() {
	listener, err := net.Listen("unix", api.KubeletSocket)
	if err != nil {
		log.Fatal(err)
	}
	k := &kubelet{plugins: map[string]*plugin{}, output: json.NewEncoder(os.Stdout)}
	server := grpc.NewServer()
	api.RegisterRegistrationServer(server, k)
	go func() { log.Fatal(server.Serve(listener)) }()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var resource string
		var count int
		if _, err := fmt.Sscanf(lines.Text(), "allocate %s %d", &resource, &count); err != nil {
			log.Fatalf("cannot read %q: %v", lines.Text(), err)
		}
		answer, err := k.allocate(resource, count)
		line := Line{Resource: resource, Answer: answer}
		if err != nil {
			line.Error = err.Error()
		}
		k.print(line)
	}
}
