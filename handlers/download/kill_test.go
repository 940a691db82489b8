package download_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/handlers/download"
)

// A worker dies by kill -9 in the middle of a file; another goes on from the
// checkpoint, and the file is whole.
func TestADownloadSurvivesKill9(t *testing.T) {
	t.Parallel()
	file := content(3, 40<<20)
	r := newRig(t, download.Config{})
	sent := make(chan struct{})
	h := serve(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n > 1 {
			send(w, req, `"v"`, file)
			return
		}
		w.Header().Set("ETag", `"v"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		_, _ = w.Write(file[:36<<20])
		_ = http.NewResponseController(w).Flush()
		close(sent)
		<-req.Context().Done() // the connection of a dead process
	})
	id := r.enqueue(t, download.Args{URL: h.URL, Path: "f", SHA256: sum(file)})
	worker := exec.CommandContext(t.Context(), os.Args[0])
	worker.Env = append(os.Environ(), asWorker+"="+r.db.Config().ConnString(), asWorkerRoot+"="+r.root)
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	<-sent
	r.awaitRow(t, "the first checkpoint", `SELECT EXISTS (SELECT FROM outbox.progress WHERE checkpoint IS NOT NULL)`)
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait() // that it was killed
	// What a reaper does with the lease when it has lapsed.
	if _, err := r.db.Exec(t.Context(), `
		UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, run_at = now()`); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	if got, want := r.await(t, id), "succeeded 2"; got != want {
		t.Errorf("job = %s, want %s", got, want)
	}
	r.wantFile(t, "f", file)
	asked := h.requests()
	var from int
	if len(asked) == 2 {
		_, _ = fmt.Sscanf(asked[1], "bytes=%d-", &from)
	}
	if from < 32<<20 || !strings.HasSuffix(asked[1], `"v"`) {
		t.Errorf("asked for %q, want the rest after the last checkpoint", asked)
	}
}
