// Command receiver receives the webhook of test.sh over TLS. It writes its CA to ca.pem in a folder, and then its
// address to url, and ends with 0 once it has received a POST that is signed.
package main

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	received := make(chan error, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var err error
		if r.Method != http.MethodPost || r.Header.Get("Webhook-Signature") == "" {
			err = fmt.Errorf("got %s with the headers %v, want a signed POST", r.Method, r.Header)
		}
		select {
		case received <- err:
		default:
		}
	}))
	defer server.Close() // waits for the response
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, file := range []struct {
		name string
		text []byte
	}{{"ca.pem", ca}, {"url", []byte(server.URL)}} {
		// The container's user, who is another one, reads them.
		if err := os.WriteFile(filepath.Join(dir, file.name), file.text, 0o644); err != nil {
			return err
		}
	}
	select {
	case err := <-received:
		return err
	case <-time.After(time.Minute):
		return fmt.Errorf("nothing was received within a minute")
	}
}
