package mutants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Plant writes the changed files of the module at root into dir, and returns the file for the -overlay flag of the go
// command. It leaves the module as it is.
func (m Mutant) Plant(root, dir string) (overlay string, err error) {
	changed, err := m.Changed(root)
	if err != nil {
		return "", fmt.Errorf("plant %q: %w", m.Name, err)
	}
	var replace struct{ Replace map[string]string }
	replace.Replace = map[string]string{}
	for file, text := range changed {
		// Keep the whole path: two packages may have a file of the same name.
		to := filepath.Join(dir, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", fmt.Errorf("plant %q: %w", m.Name, err)
		}
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("plant %q: %w", m.Name, err)
		}
		replace.Replace[filepath.Join(root, filepath.FromSlash(file))] = to
	}
	overlay = filepath.Join(dir, "overlay.json")
	list, err := json.MarshalIndent(replace, "", "\t")
	if err != nil {
		return "", fmt.Errorf("plant %q: %w", m.Name, err)
	}
	return overlay, os.WriteFile(overlay, list, 0o644)
}

// change is an edit whose place in a file is known.
type change struct {
	start, end int
	text       string
}

// Changed returns the texts of the files that the mutant's edits change, by file. It looks for every edit in our
// unchanged code, so the order of the edits does not matter.
func (m Mutant) Changed(root string) (map[string]string, error) {
	folders := map[string][]Declaration{}
	files := map[string]string{}
	changes := map[string][]change{}
	for _, e := range m.Edits {
		declared, read := folders[e.Folder()]
		if !read {
			var err error
			if declared, err = Declarations(root, e.Folder()); err != nil {
				return nil, err
			}
			folders[e.Folder()] = declared
		}
		d, err := e.Find(declared)
		if err != nil {
			return nil, err
		}
		start, end, text := e.place(d)
		files[d.File] = d.text
		changes[d.File] = append(changes[d.File], change{start, end, text})
	}
	for file, list := range changes {
		// From the end, so that the offsets of the others stay valid.
		slices.SortFunc(list, func(a, b change) int { return cmp.Compare(b.start, a.start) })
		text, rest := files[file], len(files[file])
		for _, c := range list {
			if c.end > rest {
				return nil, fmt.Errorf("two edits of %s overlap", file)
			}
			text, rest = text[:c.start]+c.text+text[c.end:], c.start
		}
		files[file] = text
	}
	return files, nil
}
