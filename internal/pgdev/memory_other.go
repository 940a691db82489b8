//go:build !linux

package pgdev

// memoryFolders returns no folders: only Linux is known to have a temporary folder in memory.
func memoryFolders() []string { return nil }
