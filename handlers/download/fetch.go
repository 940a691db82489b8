package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/backoff"
)

const (
	maxRequests   = 4 // per attempt; each but the first is made because the bytes so far were useless
	maxRetryAfter = time.Hour
)

var errStalled = fmt.Errorf("the server has sent nothing for %s", stallTime)

// fetchAll sends requests until the part file is the whole file.
func (t *transfer) fetchAll(ctx context.Context) error {
	for range maxRequests {
		if t.total >= 0 && t.part.size == t.total && t.resumed {
			return nil // the previous attempt had fetched all of it
		}
		whole, err := t.fetch(ctx)
		if err != nil || whole {
			return err
		}
		if err := t.restart(); err != nil {
			return err
		}
	}
	return errors.New("the server's answers to requests for a part do not fit together")
}

// fetch makes one request. It returns false if the bytes in the part file are useless and the download must start over.
func (t *transfer) fetch(ctx context.Context) (whole bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(t.stall, func() { cancel(errStalled) })
	defer stalled.Stop()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.source.String(), nil)
	if err != nil {
		return false, invalidArgs("Args.URL", "is not acceptable (it may hold a secret and is not shown)")
	}
	req.Header.Set("Accept-Encoding", "identity") // lengths and ranges then refer to the file itself
	if t.part.size > 0 {
		condition := t.validator.ifRange()
		if condition == "" {
			return false, nil
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", t.part.size))
		req.Header.Set("If-Range", condition)
	}
	res, err := t.client.Do(req)
	if err != nil {
		return false, t.explain(ctx, "ask", err)
	}
	defer res.Body.Close()

	switch {
	case res.StatusCode == http.StatusOK:
		if t.part.size > 0 { // the server ignores ranges, or has another version by now
			if err := t.restart(); err != nil {
				return false, err
			}
		}
		t.validator, t.total = newValidator(res.Header), res.ContentLength
	case res.StatusCode == http.StatusPartialContent && t.part.size > 0:
		if !t.continues(res) {
			return false, nil
		}
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable && t.part.size > 0:
		// The part file may be complete: the length was not announced, and a crash followed.
		total, ok := unsatisfied(res.Header.Get("Content-Range"))
		whole = ok && total == t.part.size && (t.total == -1 || t.total == total) &&
			!t.validator.contradicted(res.Header)
		return whole, nil
	default:
		return false, t.judge(res)
	}
	if t.total > t.max {
		return false, final("too_large", fmt.Errorf("the file has %d bytes, want at most %d", t.total, t.max))
	}
	if t.total < 0 && len(t.sum) == 0 && !res.ProtoAtLeast(2, 0) && len(res.TransferEncoding) == 0 {
		return false, final("length_unknown",
			errors.New("the server does not say where the file ends: only a SHA-256 could tell whether it is whole"))
	}
	return true, t.receive(ctx, res.Body, stalled)
}

// continues reports whether a response holds the rest of the part file's content.
func (t *transfer) continues(res *http.Response) bool {
	first, last, total, ok := contentRange(res.Header.Get("Content-Range"))
	if total < 0 {
		total = t.total
	}
	switch {
	case !ok, first != t.part.size, t.validator.contradicted(res.Header):
		return false
	case total < 0, last != total-1, t.total >= 0 && t.total != total: // all of the rest, and of known length
		return false
	case res.ContentLength >= 0 && res.ContentLength != last-first+1:
		return false
	}
	t.total = total
	return true
}

// receive appends the body of the response to the part file.
func (t *transfer) receive(ctx context.Context, body io.Reader, stalled *time.Timer) error {
	for buf := make([]byte, 256<<10); ; {
		n, err := body.Read(buf)
		if n > 0 {
			stalled.Stop() // the checkpoint may wait for the database
			switch size := t.part.size + int64(n); {
			case t.total >= 0 && size > t.total:
				return fmt.Errorf("the server sends more than the %d bytes that it announced", t.total)
			case size > t.max:
				return final("too_large", fmt.Errorf("the file has more than %d bytes", t.max))
			}
			if _, err := t.part.Write(buf[:n]); err != nil {
				return err
			}
			if err := t.report(ctx); err != nil {
				return err
			}
			stalled.Reset(t.stall)
		}
		switch {
		case err == io.EOF && t.total >= 0 && t.part.size != t.total:
			return fmt.Errorf("the file ends after %d bytes, want %d", t.part.size, t.total)
		case err == io.EOF:
			return nil
		case err != nil:
			return t.explain(ctx, "read", err)
		}
	}
}

// explain describes why there is no response, without the URL, which may hold secrets.
func (t *transfer) explain(ctx context.Context, verb string, err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s %s after %d bytes: %w", verb, t.source.Host, t.part.size, err)
}

// judge returns the error for a response without a file. A refusal is permanent unless the server reports that it is
// busy.
func (t *transfer) judge(res *http.Response) error {
	code := fmt.Sprintf("http_%d", res.StatusCode)
	err := fmt.Errorf("%s answers %s", t.source.Host, res.Status)
	busy := res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable
	if wait, ok := backoff.RetryAfter(res.Header.Get("Retry-After"), time.Now(), maxRetryAfter); ok && busy {
		return dispatcher.RetryAtLeast(wait, &Error{code: code, err: err})
	}
	switch {
	case busy, res.StatusCode >= 500, res.StatusCode == http.StatusRequestTimeout,
		res.StatusCode == http.StatusTooEarly, res.StatusCode == http.StatusPartialContent:
		return &Error{code: code, err: err}
	}
	return final(code, err)
}
