package pgdev

import (
	"fmt"
	"os"
	"testing"
)

// TestMain can also play a program that starts a server and never stops it, for
// the test that kills such a program.
func TestMain(m *testing.M) {
	if os.Getenv("PGDEV_TEST_HOLD") == "" {
		os.Exit(m.Run())
	}
	s, err := Start(background, Options{Fast: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.URL(), s.cluster.process.cmd.Process.Pid, s.cluster.path)
	select {}
}
