package download_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/handlers/download"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(asWorker); url != "" {
		beWorker(url)
		return
	}
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

const patience = time.Minute

// rig is a folder, a database, and a client that leaves no connections behind.
type rig struct {
	db    *pgxpool.Pool
	root  string
	files *download.Downloader
}

func newRig(t *testing.T, config download.Config) *rig {
	t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	config.Root = t.TempDir()
	config.Client = &http.Client{Transport: transport}
	files, err := download.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{db: pgtest.New(t), root: config.Root, files: files}
}

func (r *rig) enqueue(t *testing.T, args download.Args) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), r.db, args, outbox.Options{MaxAttempts: 4})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// start works downloads until the test ends or the returned function is called.
func (r *rig) start(t *testing.T) (stop func()) {
	t.Helper()
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, r.files.Download, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)})
	d, err := dispatcher.New(r.db, mux, dispatcher.Config{LeaseTTL: time.Hour, GracePeriod: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// await waits for the job's end and returns its status and last error code.
func (r *rig) await(t *testing.T, id outbox.ID) string {
	t.Helper()
	for range pgtest.Looks(patience) {
		var end *string
		err := r.db.QueryRow(t.Context(), `
			SELECT (SELECT concat_ws(' ', status, attempt, last_error_code, last_error_message) FROM outbox.jobs WHERE id = $1 AND status IN ('failed', 'dead', 'retrying') AND (status <> 'retrying' OR run_at > now() + interval '1 s')
			        UNION ALL SELECT concat_ws(' ', status, attempt) FROM outbox.history WHERE id = $1)`, id).Scan(&end)
		if err != nil {
			t.Fatal(err)
		}
		if end != nil {
			return *end
		}
	}
	t.Fatalf("job %s does not end", id)
	panic("unreachable")
}

// run has a file downloaded.
func (r *rig) run(t *testing.T, args download.Args) string {
	t.Helper()
	id := r.enqueue(t, args)
	defer r.start(t)()
	return r.await(t, id)
}

// tree returns every file below a folder.
func tree(t *testing.T, root string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// wantFile checks that the file is as it should be, and alone.
func (r *rig) wantFile(t *testing.T, name string, content []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(r.root, name))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%s has %d bytes, %v; want %d, the same: %v", name, len(got), err, len(content), bytes.Equal(got, content))
	}
	if files := tree(t, r.root); !slices.Equal(files, []string{name}) {
		t.Errorf("files = %q, want nothing but %s", files, name)
	}
}

func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = random.Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// host is a server that knows what it was asked.
type host struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // Range, If-Range of each request
}

// serve answers request n (from 1) with answer.
func serve(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *host {
	t.Helper()
	h := new(host)
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.asked = append(h.asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Range")))
		n := len(h.asked)
		h.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *host) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// send serves a file as net/http does, ranges and conditions included.
func send(w http.ResponseWriter, r *http.Request, etag string, file []byte) {
	w.Header().Set("ETag", etag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file))
}

// dying sends no more than so many bytes and then breaks the connection.
type dying struct {
	http.ResponseWriter
	left int
}

func (d *dying) Write(b []byte) (int, error) {
	n, err := d.ResponseWriter.Write(b[:min(len(b), d.left)])
	if d.left -= n; d.left == 0 {
		_ = http.NewResponseController(d.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

const size = 3 << 20

func TestADownloadResumesWhereTheServerDied(t *testing.T) {
	t.Parallel()
	file := content(1, size)
	r := newRig(t, download.Config{})
	h := serve(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n < 4 {
			w = &dying{w, 1 << 19}
		}
		send(w, req, `"v1"`, file)
	})
	id := r.enqueue(t, download.Args{URL: h.URL, Path: "a/b/file.bin", SHA256: strings.ToUpper(sum(file))})
	r.start(t)
	if got, want := r.await(t, id), "succeeded 4"; got != want {
		t.Errorf("job = %s, want %s", got, want)
	}
	r.wantFile(t, "a/b/file.bin", file)
	asked := h.requests()
	if len(asked) != 4 || asked[0] != "" || asked[1] != `bytes=524288- "v1"` || asked[3] != `bytes=1572864- "v1"` {
		t.Errorf("asked for %q, want each from where the one before ended", asked)
	}
	var result download.Result
	var encoded, checkpoint []byte
	var current, total int64
	if err := r.db.QueryRow(t.Context(), `SELECT result, current, total, checkpoint FROM outbox.history JOIN outbox.progress ON job_id = id`).Scan(&encoded, &current, &total, &checkpoint); err != nil {
		t.Fatal(err)
	}
	if text := string(checkpoint); strings.Contains(text, strings.TrimPrefix(h.URL, "http://")) || strings.Contains(text, "file.bin") {
		t.Errorf("the checkpoint is %s: of a sealed job, URL and path are secret", text)
	}
	if err := json.Unmarshal(encoded, &result); err != nil || result != (download.Result{Path: "a/b/file.bin", Bytes: size, SHA256: sum(file)}) || current != size || total != size {
		t.Errorf("result = %s, progress = %d of %d", encoded, current, total)
	}
}

// What cannot be continued is fetched anew, and nothing of two versions is mixed.
func TestADownloadBeginsAnewWhenItHasTo(t *testing.T) {
	t.Parallel()
	old, file := content(1, size), content(2, size-12345)
	long := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)
	die := func(w http.ResponseWriter) http.ResponseWriter { return &dying{w, 1 << 20} }
	dated := func(w http.ResponseWriter, r *http.Request, modified, etag string, b []byte) {
		w.Header().Set("Last-Modified", modified)
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		at, _ := http.ParseTime(modified)
		http.ServeContent(w, r, "", at, bytes.NewReader(b))
	}
	for name, tt := range map[string]struct {
		answer func(n int, w http.ResponseWriter, r *http.Request)
		asked  []string
	}{
		"the server ignores ranges": {func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			if n == 1 {
				w = die(w)
			}
			send(w, r, `"v"`, file)
		}, []string{"", `bytes=1048576- "v"`}},
		"another version has come": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				send(die(w), r, `"v1"`, old)
			}
			send(w, r, `"v2"`, file)
		}, []string{"", `bytes=1048576- "v1"`}},
		"another version has come, and the server ignores the condition": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				send(die(w), r, `"v1"`, old)
			}
			r.Header.Del("If-Range")
			send(w, r, `"v2"`, file)
		}, []string{"", `bytes=1048576- "v1"`, ""}},
		"a shorter version has come, and the server ignores the condition": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				send(die(w), r, `"v1"`, old)
			}
			if r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", "bytes */1000")
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			send(w, r, `"v2"`, file)
		}, []string{"", `bytes=1048576- "v1"`, ""}},
		"the server sends another range than asked for": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w = die(w)
			} else if r.Header.Get("Range") != "" {
				r.Header.Set("Range", "bytes=1048575-")
			}
			send(w, r, `"v"`, file)
		}, []string{"", `bytes=1048576- "v"`, ""}},
		"an entity tag that is weak": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w = die(w)
			}
			dated(w, r, long, `W/"v"`, file)
		}, []string{"", ""}},
		"a date that is old enough": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w = die(w)
			}
			dated(w, r, long, "", file)
		}, []string{"", "bytes=1048576- " + long}},
		"a date within the last minute": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				w = die(w)
			}
			dated(w, r, time.Now().UTC().Format(http.TimeFormat), "", file)
		}, []string{"", ""}},
		"nothing to tell versions apart by": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				http.ServeContent(die(w), r, "", time.Time{}, bytes.NewReader(old))
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file))
		}, []string{"", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, download.Config{})
			h := serve(t, tt.answer)
			if got, want := r.run(t, download.Args{URL: h.URL, Path: "f", SHA256: sum(file)}), "succeeded 2"; got != want {
				t.Errorf("job = %s, want %s", got, want)
			}
			r.wantFile(t, "f", file)
			if asked := h.requests(); !slices.Equal(asked, tt.asked) {
				t.Errorf("asked for %q, want %q", asked, tt.asked)
			}
		})
	}
}

// The attempt before had all of it, and could not know: the server says so.
func TestADownloadThatWasWholeIsNotFetchedAgain(t *testing.T) {
	t.Parallel()
	file := content(1, size)
	r := newRig(t, download.Config{})
	h := serve(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n == 1 { // its length is not announced, and its end does not arrive
			w.Header().Set("ETag", `"v"`)
			_, _ = w.Write(file)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		send(w, req, `"v"`, file)
	})
	if got, want := r.run(t, download.Args{URL: h.URL, Path: "f"}), "succeeded 2"; got != want {
		t.Errorf("job = %s, want %s", got, want)
	}
	r.wantFile(t, "f", file)
	if asked := h.requests(); !slices.Equal(asked, []string{"", `bytes=3145728- "v"`}) {
		t.Errorf("asked for %q, want for the rest, which is nothing", asked)
	}
}

func TestRedirectsAreFollowed(t *testing.T) {
	t.Parallel()
	file := content(1, size)
	r := newRig(t, download.Config{})
	h := serve(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/" {
			http.Redirect(w, req, "/elsewhere", http.StatusFound)
			return
		}
		if n == 2 {
			w = &dying{w, 1 << 20}
		}
		send(w, req, `"v"`, file)
	})
	if got, want := r.run(t, download.Args{URL: h.URL, Path: "f"}), "succeeded 2"; got != want {
		t.Errorf("job = %s, want %s", got, want)
	}
	r.wantFile(t, "f", file)
	if asked := h.requests(); len(asked) != 4 || asked[3] != `bytes=1048576- "v"` {
		t.Errorf("asked for %q, want the rest after the redirect", asked)
	}
}

func TestDownloadsThatFail(t *testing.T) {
	t.Parallel()
	file := content(1, 1<<20)
	chunked := func(w http.ResponseWriter, b []byte) {
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(b)
	}
	for name, tt := range map[string]struct {
		answer func(n int, w http.ResponseWriter, r *http.Request)
		args   download.Args
		want   string
		parts  int
	}{
		"not found":                {func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, download.Args{}, "failed 1 http_404 HOST answers 404 Not Found", 0},
		"forbidden":                {func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, download.Args{}, "failed 1 http_403", 0},
		"an error of the server's": {func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, download.Args{}, "dead 4 http_500", 1},
		"busy": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(503)
		}, download.Args{}, "retrying 1 http_503", 1},
		"a file that is announced as too large": {
			func(_ int, w http.ResponseWriter, r *http.Request) { send(w, r, `"v"`, file) },
			download.Args{MaxBytes: 1<<20 - 1},
			"failed 1 too_large the file has 1048576 bytes, want at most 1048575", 0,
		},
		"a file that turns out to be too large": {
			func(_ int, w http.ResponseWriter, _ *http.Request) { chunked(w, file) },
			download.Args{MaxBytes: 1<<20 - 1},
			"failed 1 too_large the file has more than 1048575 bytes", 0,
		},
		"a file that is larger than Config allows": {func(_ int, w http.ResponseWriter, _ *http.Request) { chunked(w, content(1, 2<<20+1)) }, download.Args{}, "failed 1 too_large", 0},
		"another hash": {
			func(_ int, w http.ResponseWriter, r *http.Request) { send(w, r, `"v"`, file) },
			download.Args{SHA256: sum(nil)},
			"failed 1 hash_mismatch the file's SHA-256 is " + sum(file), 0,
		},
		"another hash, put together of pieces": {func(n int, w http.ResponseWriter, r *http.Request) {
			switch n {
			case 1:
				send(&dying{w, 1 << 19}, r, `"v"`, content(2, 1<<20)) // one tag for two versions
			default:
				send(w, r, `"v"`, file)
			}
		}, download.Args{SHA256: sum(file)}, "succeeded 3", 1},
		"less than announced, again and again": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1048577")
			_, _ = w.Write(file)
		}, download.Args{}, "dead 4 error read HOST after 1048576 bytes: unexpected EOF", 1},
		"an end that nothing tells from a broken connection": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.0 200 OK\r\n\r\nhalf"))
				_ = conn.Close()
			}
		}, download.Args{}, "failed 1 length_unknown", 0},
		"such an end, but a hash": {func(_ int, w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.0 200 OK\r\n\r\nwhole"))
				_ = conn.Close()
			}
		}, download.Args{SHA256: sum([]byte("whole"))}, "succeeded 1", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, download.Config{MaxBytes: 2 << 20})
			h := serve(t, tt.answer)
			tt.args.URL, tt.args.Path = h.URL+"/?secret=1", "f"
			got := strings.ReplaceAll(r.run(t, tt.args), strings.TrimPrefix(h.URL, "http://"), "HOST")
			if !strings.HasPrefix(got, tt.want) || strings.Contains(got, "secret") {
				t.Errorf("job = %s, want %s", got, tt.want)
			}
			if files := tree(t, r.root); len(files) != tt.parts {
				t.Errorf("files = %q, want %d", files, tt.parts)
			}
		})
	}
}

func TestNothingIsWrittenOutsideOfTheRoot(t *testing.T) {
	t.Parallel()
	h := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { send(w, r, `"v"`, []byte("x")) })
	r := newRig(t, download.Config{})
	outside := t.TempDir()
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(r.root, "absolute")),
		os.Symlink("../"+filepath.Base(outside), filepath.Join(r.root, "relative")),
		os.Symlink(filepath.Join(outside, "file"), filepath.Join(r.root, "link")),
		os.Mkdir(filepath.Join(r.root, "inside"), 0o755),
		os.Symlink("inside", filepath.Join(r.root, "within")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	jobs := map[outbox.ID]string{}
	paths := map[string]string{
		"../file":              "failed 1 invalid_args Args.Path",
		"a/../../file":         "failed 1 invalid_args Args.Path",
		outside + "/file":      "failed 1 invalid_args Args.Path",
		"":                     "failed 1 invalid_args Args.Path",
		".":                    "failed 1 invalid_args Args.Path",
		"a/":                   "failed 1 invalid_args Args.Path",
		"a\x00b":               "failed 1 invalid_args Args.Path",
		"inside":               "failed 1 invalid_args Args.Path is \"inside\", which is a folder",
		"absolute/file":        "failed 1 path_refused",
		"absolute/deeper/file": "failed 1 path_refused",
		"relative/file":        "failed 1 path_refused",
		"within/file":          "succeeded 1",
		"link":                 "succeeded 1", // the link is replaced, not followed
		"a/../file":            "succeeded 1",
	}
	for path := range paths {
		jobs[r.enqueue(t, download.Args{URL: h.URL, Path: path})] = path
	}
	r.start(t)
	for id, path := range jobs {
		if got, want := r.await(t, id), paths[path]; !strings.HasPrefix(got, want) {
			t.Errorf("%q: job = %s, want %s", path, got, want)
		}
	}
	if files := tree(t, outside); len(files) != 0 {
		t.Errorf("outside of the root there are %q", files)
	}
}

func TestArgsThatAreNotAcceptable(t *testing.T) {
	t.Parallel()
	r := newRig(t, download.Config{MaxBytes: 100})
	for field, args := range map[string]download.Args{
		"Args.URL is malformed":                  {URL: "http://[secret", Path: "f"},
		`Args.URL has the scheme "file"`:         {URL: "file:///etc/passwd", Path: "f"},
		`Args.URL has the scheme "http" and the`: {URL: "http:///x", Path: "f"},
		"Args.SHA256":                            {URL: "http://a", Path: "f", SHA256: "12"},
		`Args.Path is "a/.posthaste-`:            {URL: "http://a", Path: "a/.posthaste-1-1-0.part"},
		"Args.MaxBytes is 101, want 1 to 100":    {URL: "http://a", Path: "f", MaxBytes: 101},
		"Args.MaxBytes is -1":                    {URL: "http://a", Path: "f", MaxBytes: -1},
	} {
		_, err := r.files.Download(t.Context(), &outbox.Job[download.Args]{Claimed: &outbox.Claimed{}, Args: args})
		if err == nil || !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "secret") && !strings.Contains(field, "malformed") {
			t.Errorf("%+v: %v, want %s", args, err, field)
		}
	}
	for want, config := range map[string]download.Config{
		"Config.MaxBytes is -1":         {MaxBytes: -1, Root: "."},
		"Config.Root is empty":          {},
		"Config.Root cannot be opened:": {Root: filepath.Join(r.root, "none")},
	} {
		_, err := download.New(config)
		if _, typed := errors.AsType[*outbox.InvalidError](err); !typed || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an InvalidError: %s", config, err, want)
		}
	}
}

// A worker loses its job in the middle of a file without knowing it. Its
// replacement takes over what was stored, and fetches the rest; the file has a new
// version by then. What the zombie still receives is written nowhere.
func TestAZombieDoesNotSpoilTheFile(t *testing.T) {
	t.Parallel()
	old, file := content(1, 40<<20), content(2, size)
	r := newRig(t, download.Config{})
	proceed := make(chan struct{})
	h := serve(t, func(n int, w http.ResponseWriter, req *http.Request) {
		if n > 1 {
			send(w, req, `"v2"`, file)
			return
		}
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(old)))
		_, _ = w.Write(old[:36<<20])
		_ = http.NewResponseController(w).Flush()
		<-proceed
		_, _ = w.Write(old[36<<20:])
	})
	id := r.enqueue(t, download.Args{URL: h.URL, Path: "f"})
	stopZombie := r.start(t)
	r.awaitRow(t, "the first checkpoint", `SELECT EXISTS (SELECT FROM outbox.progress WHERE checkpoint IS NOT NULL)`)
	if _, err := r.db.Exec(t.Context(), `
		UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, run_at = now()`); err != nil {
		t.Fatal(err)
	}
	stopReplacement := r.start(t)
	if got, want := r.await(t, id), "succeeded 2"; got != want {
		t.Errorf("job = %s, want %s", got, want)
	}
	close(proceed)
	stopReplacement()
	stopZombie()
	r.wantFile(t, "f", file)
	if asked := h.requests(); len(asked) != 2 || !strings.HasPrefix(asked[1], "bytes=") || !strings.HasSuffix(asked[1], `"v1"`) {
		t.Errorf("asked for %q, want that the replacement tries to go on", asked)
	}
}

func (r *rig) awaitRow(t *testing.T, what, sql string) {
	t.Helper()
	for range pgtest.Looks(patience) {
		var holds bool
		if err := r.db.QueryRow(t.Context(), sql).Scan(&holds); err != nil {
			t.Fatal(err)
		}
		if holds {
			return
		}
	}
	t.Fatalf("%s does not come", what)
}

// asWorker makes the test binary be a worker of the database that it names, which
// is killed in the middle of a download.
const asWorker, asWorkerRoot = "POSTHASTE_TEST_WORKER", "POSTHASTE_TEST_WORKER_ROOT"

func beWorker(url string) {
	fail := func(err error) {
		if err != nil {
			slog.Error("worker", "err", err)
			os.Exit(1)
		}
	}
	pool, err := pgxpool.New(context.Background(), url)
	fail(err)
	files, err := download.New(download.Config{Root: os.Getenv(asWorkerRoot)})
	fail(err)
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, files.Download)
	d, err := dispatcher.New(pool, mux, dispatcher.Config{LeaseTTL: time.Minute})
	fail(err)
	fail(d.Run(context.Background()))
}
