// SPDX-License-Identifier: Apache-2.0

// Command hostpathplugin stands in for that of kubernetes-csi/csi-driver-host-path, whose module cannot be had, in the
// one mode that the end-to-end tests of DRA use: each connection to a Unix socket is joined with one to a TCP port.
package main

import (
	"flag"
	"io"
	"log"
	"net"
	"os"
	"strings"
)

func main() {
	endpoint := flag.String("endpoint", "", "path of the Unix socket, on which the kubelet connects")
	proxy := flag.String("proxy-endpoint", "", "tcp://:PORT, on which the test connects through a port-forward")
	flag.Int("v", 0, "ignored")
	flag.Parse()
	_ = os.Remove(strings.TrimPrefix(*endpoint, "unix://"))
	local := listen("unix", strings.TrimPrefix(*endpoint, "unix://"))
	remote := listen("tcp", strings.TrimPrefix(*proxy, "tcp://"))
	for {
		one, err := local.Accept()
		if err != nil {
			log.Fatal(err)
		}
		other, err := remote.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go join(one, other)
		go join(other, one)
	}
}

func listen(network, address string) net.Listener {
	listener, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

// join copies until one side ends, and then ends both.
func join(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	_ = from.Close()
	_ = to.Close()
}
