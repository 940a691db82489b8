package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Plant writes the changed files of the module at root into dir, and returns the
// file for the -overlay flag of the go command. The module is left as it is.
func (m Mutant) Plant(root, dir string) (overlay string, err error) {
	changed := map[string]string{}
	for _, e := range m.Edits {
		source, edited := changed[e.File]
		if !edited {
			read, err := os.ReadFile(filepath.Join(root, e.File))
			if err != nil {
				return "", fmt.Errorf("plant %q: %w", m.Name, err)
			}
			source = string(read)
		}
		if changed[e.File], err = e.apply(source); err != nil {
			return "", fmt.Errorf("plant %q: %w", m.Name, err)
		}
	}

	var replace struct{ Replace map[string]string }
	replace.Replace = map[string]string{}
	for file, text := range changed {
		// By its whole path: two packages may have a file of the same name.
		to := filepath.Join(dir, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", fmt.Errorf("plant %q: %w", m.Name, err)
		}
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("plant %q: %w", m.Name, err)
		}
		replace.Replace[filepath.Join(root, file)] = to
	}
	overlay = filepath.Join(dir, "overlay.json")
	list, err := json.MarshalIndent(replace, "", "\t")
	if err != nil {
		return "", fmt.Errorf("plant %q: %w", m.Name, err)
	}
	return overlay, os.WriteFile(overlay, list, 0o644)
}

// apply refuses a text that is there twice: which of the two was meant?
func (e Edit) apply(source string) (string, error) {
	if n := strings.Count(source, e.Old); n != 1 {
		return "", fmt.Errorf("%s has this text %d times, want once:\n%s", e.File, n, e.Old)
	}
	return strings.Replace(source, e.Old, e.New, 1), nil
}
