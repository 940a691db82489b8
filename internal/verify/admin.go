package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// metric is the sum of a metric's series, as a process publishes them now.
func (r *Run) metric(ctx context.Context, p *child.Process, name string) (sum float64, err error) {
	addr, err := adminOf(p)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", p.Name, err)
	}
	defer res.Body.Close()
	found := false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if series, _, _ = strings.Cut(series, "{"); series != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metrics of %s: %q: %w", p.Name, lines.Text(), err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("%s publishes no %s", p.Name, name)
	}
	return sum, nil
}

// adminOf is where a process says that it serves its metrics.
func adminOf(p *child.Process) (addr string, err error) {
	content, err := os.ReadFile(p.Log)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		var said struct{ Msg, Addr string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "admin server listens" {
			return said.Addr, nil
		}
	}
	return "", fmt.Errorf("%s has not said where its admin server is", p.Name)
}

// logged is how many lines of a process's log have a text.
func logged(p *child.Process, text string) (n int, err error) {
	content, err := os.ReadFile(p.Log)
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n, err
}
