// Package site is the manual as a web site, in the program: make docs builds site.zip.zst of the pages in docs/.
package site

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Base is the path below which [Handler] answers: the pages' links are made for it.
const Base = "/manual/"

//go:embed site.zip.zst
var archive []byte

// Files returns the site's files: its pages as HTML and as Markdown, what they load, and llms.txt. The first call
// unpacks them, 5 MB.
func Files() fs.FS { return files() }

var files = sync.OnceValue(func() *zip.Reader {
	found, err := Unpack(archive)
	if err != nil {
		panic("site.zip.zst: " + err.Error()) // it is embedded, and tested
	}
	return found
})

// Unpack returns the files of an archive as make docs writes it. They are packed together, not one by one, because they
// have each page three times: as HTML, as a script and as Markdown.
func Unpack(archive []byte) (*zip.Reader, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	unpacked, err := decoder.DecodeAll(archive, nil)
	if err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(unpacked), int64(len(unpacked)))
}

// Page returns the Markdown of a page by its path, such as guides/retries.
func Page(name string) ([]byte, error) {
	return fs.ReadFile(Files(), strings.TrimSuffix(name, ".md")+".md")
}

// Handler serves the site below [Base]. It loads nothing from elsewhere.
func Handler() http.Handler {
	policy := sync.OnceValue(func() string {
		scripts, err := fs.ReadFile(Files(), "scripts.txt") // hashes of the scripts that stand in the pages themselves
		if err != nil {
			panic("site.zip.zst: " + err.Error())
		}
		return "default-src 'none'; script-src 'self' " + string(scripts) + "; style-src 'self' 'unsafe-inline'; " +
			"img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	})
	version := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(archive))[:16]) // files in it have no times
	server := sync.OnceValue(func() http.Handler { return http.StripPrefix(Base, http.FileServerFS(Files())) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, below := strings.CutPrefix(r.URL.Path, Base)
		if !below {
			http.Redirect(w, r, Base, http.StatusSeeOther)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy())
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("ETag", version)
		h.Set("Cache-Control", "no-cache")
		switch {
		case strings.HasPrefix(name, "assets/"): // their names change with their content
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
		case strings.HasSuffix(name, ".md"):
			h.Set("Content-Type", "text/markdown; charset=utf-8")
		case name != "" && path.Ext(name) == "": // a page: guides/retries is guides/retries.html
			r = r.Clone(r.Context())
			r.URL.Path += ".html"
		}
		server().ServeHTTP(w, r)
	})
}
