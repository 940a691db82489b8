// Package download is a handler for jobs that fetch a file over HTTP: it resumes
// where the attempt before was cut off, verifies what it got, and puts the file in
// its place in one move.
//
//	files, err := download.New(download.Config{Root: "/var/lib/shop/files"})
//	…
//	dispatcher.HandleResult(&mux, files.Download, dispatcher.KindConfig{Timeout: 2 * time.Hour})
//
// Guarantees: the file at its path is whole, or the one that was there before. It
// has the length that the server announced and, if the job gives a SHA-256, that
// one. Nothing is written outside of the root, also not through symbolic links.
//
// An attempt writes to a part file of its own beside the target, named after the
// job and the attempt's epoch, and only ever appends to it; what it has saved as a
// checkpoint is on disk. The next attempt copies that much into a file of its own
// and asks the server for the rest: guarded by If-Range, so that bytes of two
// versions never meet. A worker that lost its job without knowing it thus writes
// where nobody reads. Before it moves its file it has to save a last checkpoint,
// which it no longer can. Only if it is stopped exactly between the two may the
// file of an earlier attempt, whole and verified as well, replace that of a later
// one.
//
// Part files (.posthaste-*.part) of jobs that failed permanently are removed; those
// of jobs that are dead, for they have used up their attempts, stay for a retry.
package download
