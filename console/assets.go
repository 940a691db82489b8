package console

import (
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// files contains the files that browsers load, in source form, including those that vendor.txt lists.
//
//go:embed assets
var files embed.FS

// assetTypes maps the extensions of served files to their content types.
var assetTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// assets serves the files under the hash of all of them: a new build has new URLs, and caches may keep those of an old
// one forever.
type assets struct {
	hash  string
	files map[string]*asset // by path below assets
}

type asset struct {
	content     []byte
	contentType string
	gzip        func() []byte
}

var newAssets = sync.OnceValue(func() *assets {
	a := &assets{files: map[string]*asset{}}
	sum := sha256.New()
	err := fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || assetTypes[path.Ext(name)] == "" {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		_, _ = sum.Write(append([]byte(name), content...))
		a.files[strings.TrimPrefix(name, "assets/")] = &asset{
			content, assetTypes[path.Ext(name)],
			sync.OnceValue(func() []byte { return gzipped(content, gzip.BestCompression) }),
		}
		return nil
	})
	if err != nil {
		panic(err) // they are compiled in
	}
	a.hash = hex.EncodeToString(sum.Sum(nil)[:8])
	return a
})

// assetOf parses …/assets/HASH/NAME.
func assetOf(p string) (hash, name string, ok bool) {
	const folder = "/assets/"
	i := strings.LastIndex("/"+strings.TrimPrefix(p, "/"), folder)
	if i < 0 {
		return "", "", false
	}
	return strings.Cut(("/" + strings.TrimPrefix(p, "/"))[i+len(folder):], "/")
}

// url returns the URL of a file, from any page.
func (a *assets) url(name string) string { return "assets/" + a.hash + "/" + name }

// serve answers with a file. It refuses one of another build rather than answer with its own: a process of that build
// may be running too, and a reload finds it.
func (a *assets) serve(v *visit, hash, name string) {
	file, h := a.files[name], v.w.Header()
	if file == nil || hash != a.hash {
		http.Error(v.w, "There is no such file in this build.", http.StatusNotFound)
		return
	}
	if v.r.Method != http.MethodGet && v.r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(v.w, "Files are only read.", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	// The shared worker is such a file: it loads another one, and reads the stream.
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'")
	h.Set("Content-Type", file.contentType)
	h.Add("Vary", "Accept-Encoding")
	content := file.content
	if strings.Contains(v.r.Header.Get("Accept-Encoding"), "gzip") {
		content = file.gzip()
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(content)))
	if v.r.Method == http.MethodGet {
		_, _ = v.w.Write(content) // the client went away
	}
}
