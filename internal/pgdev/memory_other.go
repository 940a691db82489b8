//go:build !linux

package pgdev

// memoryFolders are temporary folders in memory: only Linux is known to have one.
func memoryFolders() []string { return nil }
