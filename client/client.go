package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer limits how much of an answer is read: a page of jobs is far smaller.
const maxAnswer = 64 << 20

// Config configures a client. Its zero value sends no token.
type Config struct {
	Token string // the bearer token; "" sends none
	// HTTP sends the requests; nil means a client of its own without a timeout, because contexts set the limits. It
	// does not follow a redirect that would turn a request that changes something into another, such as a POST into a
	// GET, or one over https into one without: such a redirect is a [*Problem].
	HTTP     *http.Client
	Attempts int           // of a request that may be repeated; 0 means 4, 1 repeats nothing
	MaxWait  time.Duration // the longest wait between attempts, whatever Retry-After asks for; 0 means 30 s
}

// A Client accesses one API. It is safe for concurrent use.
type Client struct {
	base     string // without a trailing slash
	token    string
	http     *http.Client
	attempts int
	maxWait  time.Duration
	silence  time.Duration
}

// New returns a client of the API at a URL like https://jobs.example.com/posthaste.
func New(baseURL string, config Config) (*Client, error) {
	u, err := url.Parse(baseURL)
	switch {
	case err != nil:
		return nil, errors.New("the API's URL is malformed") // it may contain a secret
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("the API's URL must be like https://host/path, without user, query and fragment")
	case config.Attempts < 0, config.MaxWait < 0:
		return nil, errors.New("Attempts and MaxWait must not be negative")
	}
	c := &Client{
		base: strings.TrimRight(u.String(), "/"), token: config.Token,
		attempts: cmp.Or(config.Attempts, 4), maxWait: cmp.Or(config.MaxWait, 30*time.Second), silence: silence,
	}
	c.http = sameMethod(config.HTTP)
	return c, nil
}

// sameMethod returns a client like this one, or like the default for nil, that does not follow a 301, 302 or 303 from
// a POST: the request would become a GET, whose answer does not tell what was done. Nor does it follow https to http,
// with the token.
func sameMethod(like *http.Client) *http.Client {
	mine := http.Client{}
	if like != nil {
		mine = *like
	}
	then := mine.CheckRedirect
	mine.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		switch {
		case req.Method != via[0].Method, via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https":
			return http.ErrUseLastResponse
		case then != nil:
			return then(req, via)
		case len(via) >= 10: // like the default
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}
	return &mine
}

type requestIDKey struct{}

// WithRequestID gives an id to the requests made with the context: the server's log, its audit and a [Problem] name it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// request is one call of a route.
type request struct {
	method, path string // path is escaped
	query        url.Values
	contentType  string
	body         []byte
	// repeatable is set if sending the request again is harmless whatever happened the first time.
	repeatable bool
	err        error // why it cannot be made
}

func get(path string, query url.Values) request {
	return request{method: http.MethodGet, path: path, query: query, repeatable: true}
}

// post returns a request with a body, unless body is nil.
func post(path string, body any) request {
	r := request{method: http.MethodPost, path: path}
	if body != nil {
		r.contentType = "application/json"
		r.body, r.err = encode(body)
	}
	return r
}

// encode returns JSON on one line, escaped no more than necessary.
func encode(v any) ([]byte, error) {
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	err := to.Encode(v)
	return text.Bytes(), err
}

// do sends a request, repeats it if that is safe and sensible, and reads its answer.
func (c *Client) do(ctx context.Context, r request, answer any) error {
	if r.err != nil {
		return fmt.Errorf("%s %s: %w", r.method, r.path, r.err)
	}
	open := false // an earlier attempt may have done it
	for attempt := 1; ; attempt++ {
		err := c.send(ctx, r, answer)
		if err == nil {
			return nil
		}
		if open = open || mayBeDone(err); open && r.method != http.MethodGet {
			err = unsure(err)
		}
		wait, sensible := r.again(err, attempt)
		if !sensible || attempt >= c.attempts || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(min(wait, c.maxWait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return err // it is more informative than that there was no time for another attempt
		case <-timer.C:
		}
	}
}

// newRequest returns the HTTP request.
func (c *Client) newRequest(ctx context.Context, r request) (*http.Request, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	req.Header.Set("Accept", "application/json, application/problem+json")
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if id, ok := ctx.Value(requestIDKey{}).(string); ok {
		req.Header.Set("X-Request-Id", id)
	}
	return req, nil
}

// send makes one attempt.
func (c *Client) send(ctx context.Context, r request, answer any) error {
	req, err := c.newRequest(ctx, r)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &lost{err}
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols { // the body is the connection, which no context closes
		return problemOf(resp, nil)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return &lost{fmt.Errorf("%s %s: read the answer: %w", r.method, r.path, err)}
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return problemOf(resp, text)
	}
	if len(text) > maxAnswer {
		return fmt.Errorf("%s %s: the answer is longer than %d bytes", r.method, r.path, maxAnswer)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: the answer is not what the API says: %w", r.method, r.path, err)
	}
	return nil
}

// segment adds a part of a path that comes from the caller.
func (r request) segment(name, value, rest string) request {
	if value == "" { // it would be another route
		r.err = errors.Join(r.err, fmt.Errorf("%q is no %s", value, name))
	}
	escaped := url.PathEscape(value)
	if value == "." || value == ".." { // unescaped, they would change the path
		escaped = strings.ReplaceAll(value, ".", "%2E")
	}
	r.path += "/" + escaped + rest
	return r
}

// ask sends a request as do does, and returns its answer of type A.
func ask[A any](ctx context.Context, c *Client, r request) (answer A, err error) {
	err = c.do(ctx, r, &answer)
	return answer, err
}
