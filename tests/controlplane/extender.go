// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"log"
	"net/http"

	"github.com/spf13/cobra"
	extender "k8s.io/kube-scheduler/extender/v1"
)

// newNoopExtender makes an extender that lets every node through and scores none: the floor of what any extender
// costs the scheduler, whatever it is written in (make bench-scheduler).
func newNoopExtender() *cobra.Command {
	flags := flag.NewFlagSet("noop-extender", flag.ExitOnError)
	listen := flags.String("listen", "127.0.0.1:0", "address")
	cert := flags.String("cert", "", "certificate file")
	key := flags.String("key", "", "key file")
	return &cobra.Command{
		Use:                "noop-extender",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, arguments []string) error {
			if err := flags.Parse(arguments); err != nil {
				return err
			}
			http.HandleFunc("/scheduler/filter", func(w http.ResponseWriter, r *http.Request) {
				answer(w, r, func(args extender.ExtenderArgs) any {
					return extender.ExtenderFilterResult{NodeNames: args.NodeNames}
				})
			})
			http.HandleFunc("/scheduler/prioritize", func(w http.ResponseWriter, r *http.Request) {
				answer(w, r, func(args extender.ExtenderArgs) any {
					scores := make(extender.HostPriorityList, 0, len(*args.NodeNames))
					for _, name := range *args.NodeNames {
						scores = append(scores, extender.HostPriority{Host: name})
					}
					return scores
				})
			})
			return http.ListenAndServeTLS(*listen, *cert, *key, nil)
		},
	}
}

func answer(w http.ResponseWriter, r *http.Request, decide func(extender.ExtenderArgs) any) {
	var args extender.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(decide(args)); err != nil {
		log.Print(err)
	}
}
