// SPDX-License-Identifier: Apache-2.0

//go:build dra_health

package main

import (
	"context"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// WatchHealthStatus reports nothing: the driver does not support it. The library asks for it since v0.37.
func (d *draDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
