package api

import "net/http"

// answer remembers the status. Before the first of it is written begun is called, if it
// is set: what there is to do has been done then, and who reads slowly keeps nobody else
// from being worked for.
type answer struct {
	http.ResponseWriter
	status int
	begun  func()
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(b)
}

func (a *answer) begin() {
	if a.begun != nil {
		a.begun()
		a.begun = nil
	}
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
