// SPDX-License-Identifier: Apache-2.0

// Command selectors says what kube-scheduler's own code makes of CEL selectors of devices.
//
// It reads lines of JSON with an expression and a device, and answers each with a line: whether the device matches, or
// the error of the evaluation or of the compilation, and what the evaluation cost. It is no part of the control plane's
// binary, since Kubernetes 1.33 and 1.34 have another interface.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"

	resource "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string          `json:"expression"`
	Driver     string          `json:"driver"`
	Device     resource.Device `json:"device"`
}

type answer struct {
	Matches      bool   `json:"matches"`
	Error        string `json:"error,omitempty"`
	CompileError string `json:"compileError,omitempty"`
	Cost         uint64 `json:"cost"`
}

func main() {
	lists := flag.Bool("lists", false, "turn the feature gate DRAListTypeAttributes on, which is off by default")
	flag.Parse()
	// DRAConsumableCapacity is on by default since 1.36.
	features := cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: *lists}
	compiled := map[string]cel.CompilationResult{}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(make([]byte, 1<<20), 1<<24)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var asked question
		if err := json.Unmarshal(input.Bytes(), &asked); err != nil {
			log.Fatalf("selectors: %v in %s", err, input.Bytes())
		}
		result, known := compiled[asked.Expression]
		if !known {
			options := cel.Options{DisableCostEstimation: true}
			result = cel.GetCompiler(features).CompileCELExpression(asked.Expression, options)
			compiled[asked.Expression] = result
		}
		if err := output.Encode(judge(result, asked)); err != nil {
			log.Fatal(err)
		}
	}
	if err := input.Err(); err != nil {
		log.Fatal(err)
	}
}

func judge(result cel.CompilationResult, asked question) answer {
	if result.Error != nil {
		return answer{CompileError: result.Error.Error()}
	}
	device := cel.Device{
		Driver:                   asked.Driver,
		AllowMultipleAllocations: asked.Device.AllowMultipleAllocations,
		Attributes:               asked.Device.Attributes,
		Capacity:                 asked.Device.Capacity,
	}
	matches, details, err := result.DeviceMatches(context.Background(), device)
	judged := answer{Matches: matches}
	if details != nil && details.ActualCost() != nil {
		judged.Cost = *details.ActualCost()
	}
	if err != nil {
		judged.Error = err.Error()
	}
	return judged
}
