// SPDX-License-Identifier: Apache-2.0

// Reads a Dockerfile as BuildKit does, and prints what its linter says of it: a line each, nothing if all is well.
package main

import (
	"fmt"
	"os"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	read, err := parser.Parse(os.Stdin)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, warning := range read.Warnings {
		fmt.Println(warning.Short)
	}
	say := func(rule, description, url, message string, location []parser.Range) {
		line := 0
		if len(location) > 0 {
			line = location[0].Start.Line
		}
		fmt.Printf("%d: %s: %s\n", line, rule, message)
	}
	if _, _, err := instructions.Parse(read.AST, linter.New(&linter.Config{Warn: say})); err != nil {
		fmt.Println(err)
	}
}
