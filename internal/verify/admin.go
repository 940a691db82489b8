package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// get requests a path of a worker's admin server, whose address it takes from the worker's log.
func get(ctx context.Context, p *child.Process, path string) (io.ReadCloser, error) {
	listens, err := sayings(p, "admin server listens", time.Time{})
	if err != nil || len(listens) == 0 {
		return nil, fmt.Errorf("%s has not logged its address: %w", p.Name, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listens[0].Addr+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// report holds the fields of the body of /readyz that rows look at.
type report struct {
	Status     string `json:"status"`
	Components map[string]struct {
		State string `json:"state"`
	} `json:"components"`
}

// readyz returns what a worker's /readyz reports.
func readyz(ctx context.Context, p *child.Process) (r report, err error) {
	body, err := get(ctx, p, "/readyz")
	if err != nil {
		return r, err
	}
	defer body.Close()
	return r, json.NewDecoder(body).Decode(&r)
}

// awaitStatus waits until the workers report a status: "ready", "degraded", …
func (r *Run) awaitStatus(ctx context.Context, status string, workers ...*child.Process) error {
	for _, p := range workers {
		err := r.Await(ctx, patience, p.Name+" to be "+status, func(ctx context.Context) (bool, error) {
			said, err := readyz(ctx, p)
			return said.Status == status, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// metric returns the sum of a metric's series over all the workers.
func metric(ctx context.Context, name string, workers ...*child.Process) (sum float64, err error) {
	for _, p := range workers {
		body, err := get(ctx, p, "/metrics")
		if err != nil {
			return 0, err
		}
		lines := bufio.NewScanner(body)
		for lines.Scan() {
			series, value, found := strings.Cut(lines.Text(), " ")
			if base, _, _ := strings.Cut(series, "{"); !found || base != name {
				continue
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("%s of %s: %w", name, p.Name, err)
			}
			sum += v
		}
		if err := lines.Err(); err != nil {
			return 0, fmt.Errorf("%s of %s: %w", name, p.Name, err)
		}
		body.Close()
	}
	return sum, nil
}
