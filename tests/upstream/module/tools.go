// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package upstream names the programs of Kubernetes' own end-to-end suite, so that this module pins what they need.
package upstream

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost/connect"
)
