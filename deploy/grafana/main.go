// Command grafana writes the boards for Grafana, as JSON: go run ./deploy/grafana FOLDER.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: grafana FOLDER")
		os.Exit(2)
	}
	for _, b := range boards() {
		text, err := b.json()
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], b.UID+".json"), text, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "grafana:", err)
			os.Exit(1)
		}
	}
}
