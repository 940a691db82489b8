package engine

import "runtime/debug"

// Version returns the program's version, as the go command stamped it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 11 && info.Main.Version == "(devel)" {
			return s.Value[:11]
		}
	}
	return info.Main.Version
}
