// Package download provides a handler for jobs that fetch a file over HTTP: it resumes where the previous attempt was
// cut off, verifies the content, and moves the finished file into place in one step.
//
//	files, err := download.New(download.Config{Root: "/var/lib/shop/files"})
//	…
//	dispatcher.HandleResult(&mux, files.Download, dispatcher.KindConfig{Timeout: 2 * time.Hour})
//
// Guarantees: the path holds either the whole file or the previous one. The file has the length that the server
// announced and, if the job gives a SHA-256, that hash. Nothing is written outside the root, not even through symbolic
// links.
//
// Each attempt writes to a part file of its own next to the target, named after the job and the attempt's epoch, and
// only ever appends to it; the bytes recorded in its checkpoint are on disk. The next attempt copies those bytes into a
// file of its own and asks the server for the rest, guarded by If-Range, so that bytes of two versions never mix. A
// worker that has lost its job without knowing it therefore writes to a file that nobody reads. Before it moves its
// file into place it must save a last checkpoint, which it no longer can. Only if it is stopped exactly between the two
// may the file of an earlier attempt, also whole and verified, replace that of a later one.
//
// Part files (.posthaste-*.part) of jobs that failed permanently are removed; those of jobs that are dead, because
// their attempts ran out, stay for a retry.
package download
