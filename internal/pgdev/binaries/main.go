// Command binaries prints the folder of the Postgres binaries that pgdev would start, and fetches them first if none
// are installed. PG=18 selects that major version.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

func main() {
	bin, err := pgdev.Binaries(context.Background(), os.Getenv("PG"), os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "binaries:", err)
		os.Exit(1)
	}
	fmt.Println(bin)
}
