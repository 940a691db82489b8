package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/dsn"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay/webhook"
)

// The parse functions return errors that complete the sentence "OUTBOX_X is "value", …".

func parseSwitch(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "on", "true", "1", "yes":
		return true, nil
	case "off", "false", "0", "no":
		return false, nil
	}
	return false, errors.New("want on or off")
}

func parseOneOf(v string, wanted ...string) (string, error) {
	if slices.Contains(wanted, v) {
		return v, nil
	}
	return "", fmt.Errorf("want one of %s", strings.Join(wanted, ", "))
}

func parseRoles(v string) ([]string, error) {
	var roles []string
	for part := range strings.SplitSeq(v, ",") {
		role, err := parseOneOf(strings.TrimSpace(part), "dispatch", "reap", "relay", "api", "console")
		if err != nil {
			return nil, errors.New("want some of dispatch, reap, relay, api, console, separated by commas")
		}
		roles = append(roles, role)
	}
	return roles, nil
}

func parseUnread(v string) (lose bool, err error) {
	switch v {
	case "hold", "lose":
		return v == "lose", nil
	}
	return false, errors.New("want hold or lose")
}

func parseNotify(v string) (outbox.NotifyMode, error) {
	switch mode := outbox.NotifyMode(v); mode {
	case outbox.NotifyCoalesced, outbox.NotifyTransactional, outbox.NotifyOff:
		return mode, nil
	}
	return "", errors.New("want off, transactional or coalesced")
}

// parseKeep parses a retention and exceptions by status, in all queues or in one: 30d,succeeded=14d,mail:succeeded=2d.
// Results are guaranteed for a day, except for a status with 0: its jobs are deleted at the next pass.
func parseKeep(v string) (keep time.Duration, byStatus map[outbox.Status]time.Duration, byQueue map[string]map[outbox.Status]time.Duration, err error) {
	const least, most = 24 * time.Hour, 100 * 365 * 24 * time.Hour
	byStatus, byQueue = map[outbox.Status]time.Duration{}, map[string]map[outbox.Status]time.Duration{}
	for part := range strings.SplitSeq(v, ",") {
		name, value, named := strings.Cut(strings.TrimSpace(part), "=")
		if !named {
			if keep != 0 {
				return 0, nil, nil, errors.New(
					"want one duration for all outcomes, then outcome=duration for those that differ")
			}
			if keep, err = parseDuration(name, least, most); err != nil {
				return 0, nil, nil, fmt.Errorf(
					"%w; an outcome of which nothing is to be kept says so by itself: succeeded=0", err)
			}
			continue
		}
		keeps := byStatus
		if i := strings.LastIndexByte(name, ':'); i >= 0 {
			queue := name[:i]
			if !isName(queue) {
				return 0, nil, nil, fmt.Errorf("%q is not a queue's name, want queue:outcome=duration", queue)
			}
			if byQueue[queue] == nil {
				byQueue[queue] = map[outbox.Status]time.Duration{}
			}
			keeps, name = byQueue[queue], name[i+1:]
		}
		status, err := operator.ParseStatus(name)
		if err != nil || !status.Closed() && status != outbox.Failed && status != outbox.Dead {
			return 0, nil, nil, fmt.Errorf("%q is not an outcome, want one like succeeded, cancelled or dead", name)
		}
		if _, twice := keeps[status]; twice {
			return 0, nil, nil, fmt.Errorf("%q is listed twice", strings.TrimSpace(part))
		}
		if keeps[status], err = parseDuration(value, 0, most); err != nil ||
			keeps[status] != 0 && keeps[status] < least {
			return 0, nil, nil, fmt.Errorf("%s: want a duration of %s to %s, or 0 to keep none", name, short(least),
				short(most))
		}
	}
	return keep, byStatus, byQueue, nil
}

var days = regexp.MustCompile(`^([0-9]{1,6})d`)

// maxDays is the most days that fit into a Duration, whatever follows: the sum of two is negative if it is too large.
const maxDays = int(math.MaxInt64 / (24 * time.Hour))

// parseDuration parses a Go duration that may begin with days: 30s, 1h30m, 14d, 1d12h.
func parseDuration(v string, least, most time.Duration) (time.Duration, error) {
	want := fmt.Errorf("want a duration of %s to %s%s", short(least), short(most), examplesWithin(least, most))
	var d time.Duration
	rest := v
	if m := days.FindStringSubmatch(v); m != nil {
		n, _ := strconv.Atoi(m[1]) // six digits
		if n > maxDays {
			return 0, want
		}
		d, rest = time.Duration(n)*24*time.Hour, v[len(m[0]):]
	}
	if rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil {
			return 0, want
		}
		d += more
	}
	if v == "" || d < least || d > most {
		return 0, want
	}
	return d, nil
}

// examplesWithin returns examples of durations between two limits.
func examplesWithin(least, most time.Duration) string {
	var examples []string
	for _, d := range []time.Duration{500 * time.Millisecond, 30 * time.Second, 5 * time.Minute, 14 * 24 * time.Hour} {
		if d >= least && d <= most {
			examples = append(examples, short(d))
		}
	}
	switch last := len(examples) - 1; last {
	case -1:
		return ""
	case 0:
		return ", like " + examples[0]
	default:
		return ", like " + strings.Join(examples[:last], ", ") + " or " + examples[last]
	}
}

// short returns d as a person would write it.
func short(d time.Duration) string {
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return strconv.Itoa(int(d/day)) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseInstant parses a time, or a date, which means its midnight in UTC. It refuses the zero time, which means no
// bound or no change to those who get it: a flag names a time.
func parseInstant(v string) (at time.Time, err error) {
	if at, err = time.Parse(time.DateOnly, v); err != nil {
		at, err = time.Parse(time.RFC3339, v)
	}
	if err != nil || at.IsZero() {
		return time.Time{}, errors.New(
			"want a time like 2027-01-31T09:00:00Z, or a date like 2027-01-31, whose midnight in UTC it is")
	}
	return at, nil
}

// isName reports whether package outbox accepts s as a kind or a queue.
func isName(s string) bool { return engine.NameFault(s) == "" }

func parseQueues(v string) (map[string]dispatcher.QueueConfig, error) {
	queues := map[string]dispatcher.QueueConfig{}
	for part := range strings.SplitSeq(v, ",") {
		name, number, limited := strings.Cut(strings.TrimSpace(part), "=")
		if !isName(name) {
			return nil, fmt.Errorf("%q is not a queue's name, want a list like default=64,mail=8", name)
		}
		if _, twice := queues[name]; twice {
			return nil, fmt.Errorf("the queue %q is listed twice", name)
		}
		var config dispatcher.QueueConfig
		if limited {
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 || n > 100_000 {
				return nil, fmt.Errorf("the queue %q has %q jobs at once, want 1 to 100000", name, number)
			}
			config.Concurrency = n
		}
		queues[name] = config
	}
	return queues, nil
}

// webhookRoute maps a kind to the URL for its jobs.
type webhookRoute struct{ kind, url string }

func parseWebhooks(v string) ([]webhookRoute, error) {
	var routes []webhookRoute
	for part := range strings.SplitSeq(v, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		kind, url, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || !isName(kind) {
			return nil, errors.New("want KIND=URL, separated by commas (a comma within a URL is written %2C)")
		}
		if _, err := webhook.Parse(url); err != nil {
			return nil, fmt.Errorf("of kind %q: %w", kind, err)
		}
		if slices.ContainsFunc(routes, func(r webhookRoute) bool { return r.kind == kind }) {
			return nil, fmt.Errorf("the kind %q is listed twice", kind)
		}
		routes = append(routes, webhookRoute{kind, url})
	}
	return routes, nil
}

// parseWebhookSecrets parses secrets in the form of Standard Webhooks. Its errors do not quote them.
func parseWebhookSecrets(v string) (webhook.Signing, error) {
	if v == "" {
		return webhook.Signing{}, nil
	}
	signing := webhook.Signing{Secrets: strings.Split(v, ",")}
	_, err := webhook.Handler("http://localhost", webhook.Config{Signing: signing}) // it checks them
	return signing, err
}

func parseWorker(v string) (string, error) {
	if engine.WorkerFault(v) != "" {
		return "", errors.New("want up to 128 characters without spaces")
	}
	return v, nil
}

// parseAddrOrOff returns "" for off.
func parseAddrOrOff(v string) (string, error) {
	if v == "off" {
		return "", nil
	}
	addr, err := parseAddr(v)
	if err != nil {
		err = fmt.Errorf("%w, or off", err)
	}
	return addr, err
}

func parseAddr(v string) (string, error) {
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return "", errors.New("want HOST:PORT like 127.0.0.1:9090")
	}
	return v, nil
}

func parseLogLevel(v string) (slog.Level, error) {
	var level slog.Level
	if _, err := parseOneOf(v, "debug", "info", "warn", "error"); err != nil {
		return 0, err
	}
	return level, level.UnmarshalText([]byte(v))
}

func parseDSN(v string) (string, error) {
	if v == "" {
		return "", nil
	}
	_, err := pgxpool.ParseConfig(v)
	return v, dsn.Explain(v, err)
}

// parseDecimal parses a number of digits and a point: 010 is ten, and 0x10, 1e3, 1_000 and inf are refused.
func parseDecimal(v string) (float64, error) {
	if strings.Trim(v, "0123456789.") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(v, 64)
}

// parseAPIRate parses a number of requests per second.
func parseAPIRate(v string) (float64, error) {
	if v == "" {
		return 0, nil
	}
	rate, err := parseDecimal(v)
	if err != nil || !(rate >= 0.01 && rate <= 1e6) {
		return 0, errors.New("want 0.01 to 1000000 a second")
	}
	return rate, nil
}

func parseAPI(v string) (string, error) {
	if _, err := client.New(v, client.Config{}); err != nil {
		return "", errors.New("want something like https://host/path, without user and query")
	}
	return v, nil
}

// parseToken accepts text that can stand in a header.
func parseToken(v string) (string, error) {
	if strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", errors.New("want a token as \"posthaste tokens create\" prints it")
	}
	return v, nil
}

// parseConsoleKeys parses the key that seals sessions, and the previous one: base64 of 32 bytes each.
func parseConsoleKeys(v string) (keys [][]byte, err error) {
	if v == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(v, ",") {
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(part))
		if err != nil || len(key) != 32 {
			return nil, errors.New(
				"want base64 of 32 bytes, as \"openssl rand -base64 32\" makes it, or two of them, separated by a comma")
		}
		keys = append(keys, key)
	}
	if len(keys) > 2 {
		return nil, errors.New("want two keys at most: the one that seals, and the one before it")
	}
	return keys, nil
}

func parseConsoleURL(v string) (string, error) {
	u, err := url.Parse(v)
	if v != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "") {
		return "", errors.New("want something like https://host/path/, without user and query")
	}
	return v, nil
}
