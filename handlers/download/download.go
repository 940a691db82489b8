package download

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/durable"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Args describe a file to fetch. Jobs of all tenants share the root: a program that lets tenants choose the Path should
// give each tenant a folder.
type Args struct {
	outbox.Returns[Result]

	URL      string `json:"url"`                 // http or https
	Path     string `json:"path"`                // destination below Config.Root, with slashes; folders are made
	SHA256   string `json:"sha256,omitempty"`    // of the content, in hexadecimal; "" skips the verification
	MaxBytes int64  `json:"max_bytes,omitempty"` // 0 means Config.MaxBytes, which it cannot exceed
}

// Kind returns "download".
func (Args) Kind() string { return "download" }

// Result describes the downloaded file.
type Result struct {
	Path   string `json:"path"` // as in Args
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // of the content, whether Args asked for it or not
}

// Config sets where files go and how they are fetched.
type Config struct {
	Root     string       // the folder that contains all files; must exist
	MaxBytes int64        // of one file; 0 means 10 GiB
	Client   *http.Client // nil means one without a limit on the whole request, which the attempt's timeout limits
}

const (
	defaultMaxBytes = 10 << 30
	stallTime       = time.Minute // without a byte: then the attempt ends, to be retried
)

// A Downloader fetches files. It is safe for concurrent use.
type Downloader struct {
	root     *os.Root
	folders  durable.Folders
	client   *http.Client
	maxBytes int64
	stall    time.Duration
}

// New returns a Downloader for an existing root folder, which it opens.
func New(config Config) (*Downloader, error) {
	if config.MaxBytes < 0 {
		return nil, misconfigured("Config.MaxBytes", "is %d, want at least 1, or 0 for %d", config.MaxBytes,
			defaultMaxBytes)
	}
	if config.Root == "" {
		return nil, misconfigured("Config.Root", "is empty, want a folder")
	}
	root, err := os.OpenRoot(config.Root)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", misconfigured("Config.Root", "cannot be opened"), err)
	}
	d := &Downloader{
		root: root, folders: durable.Folders{Root: root}, client: config.Client,
		maxBytes: cmp.Or(config.MaxBytes, defaultMaxBytes), stall: stallTime,
	}
	if d.client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.ResponseHeaderTimeout = stallTime
		d.client = &http.Client{Transport: transport}
	}
	return d, nil
}

// Close closes the root. Downloads in progress go on.
func (d *Downloader) Close() error { return d.root.Close() }

// Download handles a job: it fetches the file. An obstacle that a retry cannot remove fails the job permanently: a
// request that the server refuses, a file that is too large or has the wrong hash, a path outside the root. Any other
// failure is retried, and the next attempt resumes where this one was cut off, as far as the server allows.
func (d *Downloader) Download(ctx context.Context, job *outbox.Job[Args]) (Result, error) {
	t, err := d.newTransfer(job)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	if err := t.resume(ctx); err != nil {
		return Result{}, err
	}
	if err := t.fetchAll(ctx); err != nil {
		return Result{}, t.giveUp(ctx, err)
	}
	if err := t.verify(); err != nil {
		return Result{}, t.giveUp(ctx, err)
	}
	return t.publish(ctx)
}

// newTransfer validates the arguments and opens the target's folder.
func (d *Downloader) newTransfer(job *outbox.Job[Args]) (*transfer, error) {
	args := job.Args
	source, err := url.Parse(args.URL)
	if err != nil { // err would quote the URL
		return nil, invalidArgs("Args.URL", "is malformed (it may hold a secret and is not shown)")
	}
	if source.Scheme != "http" && source.Scheme != "https" || source.Hostname() == "" {
		return nil, invalidArgs("Args.URL", "has the scheme %q and the host %q, want http or https and a host",
			source.Scheme, source.Hostname())
	}
	sum, err := hex.DecodeString(args.SHA256)
	if err != nil || len(sum) != 0 && len(sum) != 32 {
		return nil, invalidArgs("Args.SHA256", "is %q, want 64 hexadecimal digits or nothing", args.SHA256)
	}
	if args.MaxBytes < 0 || args.MaxBytes > d.maxBytes {
		return nil, invalidArgs("Args.MaxBytes", "is %d, want 1 to %d, or 0 for that", args.MaxBytes, d.maxBytes)
	}
	name := path.Clean(args.Path)
	if strings.HasPrefix(path.Base(name), partMark) {
		return nil, invalidArgs("Args.Path", "is %q: files that begin with %s are ours", args.Path, partMark)
	}
	if args.Path == "" || name == "." || strings.HasSuffix(args.Path, "/") || strings.Contains(args.Path, "\x00") ||
		!filepath.IsLocal(filepath.FromSlash(name)) {
		return nil, invalidArgs("Args.Path", "is %q, want a file below the root", args.Path)
	}
	dir, err := d.openDir(path.Dir(name))
	if err != nil {
		return nil, err
	}
	return &transfer{
		Downloader: d, job: job, source: source, sum: sum, max: cmp.Or(args.MaxBytes, d.maxBytes),
		dir: dir, name: path.Base(name), total: -1,
	}, nil
}

// openDir makes and opens the target's folder. An obstacle that the operating system reports may be removed later; a
// path that os.Root itself refuses leads out of the root.
func (d *Downloader) openDir(name string) (*os.Root, error) {
	err := d.folders.MkdirAll(name, 0o755)
	if err == nil {
		var dir *os.Root
		if dir, err = d.root.OpenRoot(name); err == nil {
			return dir, nil
		}
	}
	err = fmt.Errorf("open the folder of the file: %w", err)
	if _, theirs := errors.AsType[syscall.Errno](err); !theirs {
		return nil, final("path_refused", err)
	}
	return nil, err
}

// Error is the reason for which a download failed.
type Error struct {
	code  string
	final bool
	err   error
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Code returns the error code that is stored with the failed attempt: invalid_args, path_refused, too_large,
// hash_mismatch, length_unknown, or http_404 and the like.
func (e *Error) Code() string { return e.code }

func final(code string, err error) error {
	return dispatcher.Discard(&Error{code: code, final: true, err: err})
}

func invalidArgs(field, format string, args ...any) error {
	return final("invalid_args", invalid.Field(field, format, args...))
}

func misconfigured(field, format string, args ...any) error {
	return fmt.Errorf("download: %w", invalid.Field(field, format, args...))
}

func isFinal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.final
}
