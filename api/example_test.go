package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// How do I serve the API in a program of my own?
func ExampleNew() {
	pool, end := pgtest.Example()
	defer end()
	handler, err := api.New(api.Config{Pool: pool, AnonymousLoopback: true}) // in production an Authenticator
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(handler) // in production an http.Server with timeouts, as in server.Run
	defer server.Close()

	res, err := server.Client().Post(server.URL+"/jobs", "application/json", strings.NewReader(`{"kind":"greet","payload":{"name":"Ada"}}`))
	if err != nil {
		panic(err)
	}
	_ = res.Body.Close()
	server.Client().CloseIdleConnections()
	fmt.Println(res.Status)
	// Output: 202 Accepted
}

// What does a client get for a request that is not acceptable?
func ExampleProblem() {
	pool, end := pgtest.Example()
	defer end()
	handler, err := api.New(api.Config{Pool: pool, AnonymousLoopback: true})
	if err != nil {
		panic(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "http://localhost/jobs", strings.NewReader(`{"kind":"greet","priority":1000000}`))
	r.RemoteAddr = "127.0.0.1:1234"
	r.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("Content-Type"), strings.Contains(w.Body.String(), `"code":"invalid_input"`))
	// Output: 422 application/problem+json true
}

// How do I mount the API below a path, alongside handlers of my own?
func ExampleNew_belowAPath() {
	pool, end := pgtest.Example()
	defer end()
	handler, err := api.New(api.Config{Pool: pool, AnonymousLoopback: true})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", http.StripPrefix("/outbox", handler))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the shop") })
	for _, path := range []string{"/outbox/jobs", "/"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "http://localhost"+path, nil)
		r.RemoteAddr = "127.0.0.1:1234"
		mux.ServeHTTP(w, r)
		fmt.Println(path, w.Code)
	}
	// Output:
	// /outbox/jobs 200
	// / 200
}

// Where is the description from which clients are generated?
func ExampleOpenAPI() {
	text, err := api.OpenAPI() // also at /openapi.json, and printed by posthaste openapi
	fmt.Println(strings.Contains(string(text), `"openapi":"3.1`) || strings.Contains(string(text), `"openapi": "3.1`), err)
	// Output: true <nil>
}
