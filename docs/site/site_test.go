package site

import (
	"io/fs"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// Each page is there for people and for programs, and llms.txt names it.
func TestEveryPageIsThereInBothForms(t *testing.T) {
	t.Parallel()
	files, handler := Files(), Handler()
	index, err := fs.ReadFile(files, "llms.txt")
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	err = fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, err error) error {
		page, isPage := strings.CutSuffix(name, ".md")
		if err != nil || !isPage {
			return err
		}
		pages++
		if page != "index" && !strings.Contains(string(index), "("+Base+name+")") {
			t.Errorf("llms.txt does not name %s", name)
		}
		for at, kind := range map[string]string{page: "text/html", name: "text/markdown"} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", Base+strings.TrimSuffix(at, "index"), nil))
			if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) {
				t.Errorf("%s: %d %s, want %s", at, w.Code, w.Header().Get("Content-Type"), kind)
			}
		}
		return nil
	})
	if err != nil || pages < 15 {
		t.Errorf("%d pages, %v", pages, err)
	}
}

// A page that is opened without a network is whole: what it loads is in the archive, and links within it lead to
// pages and headings that are there.
func TestPagesLoadNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	files := Files()
	loads := regexp.MustCompile(`<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)="([^"]+)"`)
	anchor := regexp.MustCompile(`<a\b[^>]*?\bhref="([^"]+)"`)
	err := fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".html" {
			return err
		}
		html, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		for _, m := range loads.FindAllStringSubmatch(string(html), -1) {
			if strings.HasPrefix(m[1], "data:") {
				continue
			}
			file, inside := strings.CutPrefix(m[1], Base)
			if _, err := fs.Stat(files, file); !inside || err != nil {
				t.Errorf("%s loads %s, which is not in the site", name, m[1])
			}
		}
		for _, m := range anchor.FindAllStringSubmatch(string(html), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			file, inside := strings.CutPrefix(target, Base)
			if !inside {
				continue
			}
			if file == "" || strings.HasSuffix(file, "/") {
				file += "index"
			}
			to, err := fs.ReadFile(files, strings.TrimSuffix(file, ".html")+".html")
			if err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			} else if fragment != "" && !strings.Contains(string(to), `id="`+fragment+`"`) {
				t.Errorf("%s links to %s, which has no such heading", name, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]int{Base + "nothing": 404, "/": 303, Base + "guides/retries": 200, Base + "../site.go": 404} {
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", at, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", at, w.Code, want)
		}
	}
	if _, err := Page("nothing"); err == nil {
		t.Error("a page that is not there has a text")
	}
}

// Everybody who installs the command downloads and stores it.
func TestTheArchiveIsSmall(t *testing.T) {
	t.Parallel()
	if most := 3 << 18; len(archive) > most { // 0.75 MiB
		t.Errorf("site.zip.zst has %d bytes, want %d at most", len(archive), most)
	}
}
