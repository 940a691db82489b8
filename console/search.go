package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// search is a filter of jobs, in the form of a URL and as people type it.
type search struct {
	kind, queue, key, fingerprint, payload string
	tenant                                 outbox.ID
	parent                                 outbox.ID // whose follow-ups are listed
	statuses                               []outbox.Status
	since, until                           instantText
	page                                   string // the page that it filters; "" means jobs
}

// instantText is a time as it was written: a time ago, or an instant with its offset.
type instantText struct {
	text string
	at   time.Time
}

// names are the conditions of the search, in the order in which they are written.
var names = []string{"kind", "queue", "status", "key", "tenant", "error", "payload", "since", "until", "parent"}

// set sets a condition by its name. The error is a sentence for the person who wrote it.
func (f *search) set(name, value string, now time.Time) (err error) {
	switch name {
	case "kind":
		f.kind = value
	case "queue":
		f.queue = value
	case "key":
		f.key = value
	case "error":
		f.fingerprint = value
	case "payload":
		f.payload = value
	case "status":
		return f.setStatuses(value)
	case "tenant":
		if f.tenant, err = outbox.ParseID(value); err != nil {
			return fmt.Errorf("%s is no tenant’s id: it has 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab",
				quoted(value))
		}
	case "parent":
		if f.parent, err = outbox.ParseID(value); err != nil {
			return fmt.Errorf("%s is no job’s id", quoted(value))
		}
	case "since":
		f.since, err = parseInstant(value, now)
	case "until":
		f.until, err = parseInstant(value, now)
	default:
		return fmt.Errorf("%s is no condition: there are %s", quoted(name), strings.Join(names, ", "))
	}
	return err
}

func (f *search) setStatuses(list string) error {
	f.statuses = nil
	for word := range strings.SplitSeq(list, ",") {
		status, err := operator.ParseStatus(word)
		if err != nil {
			return fmt.Errorf("%s is no status: there are %s", quoted(word), strings.Join(statusWords(), ", "))
		}
		if !slices.Contains(f.statuses, status) {
			f.statuses = append(f.statuses, status)
		}
	}
	return nil
}

// parseInstant parses 90s, 2h, 7d (ago) or 2027-01-31T09:00:00+01:00.
func parseInstant(text string, now time.Time) (instantText, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return instantText{text, at}, nil
	}
	number, unit := text, time.Duration(0)
	if n := len(text); n > 1 {
		number = text[:n-1]
		unit = map[byte]time.Duration{
			's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour,
			'w': 7 * 24 * time.Hour,
		}[text[n-1]]
	}
	n, err := strconv.Atoi(number)
	if err != nil || unit == 0 || n < 0 || n > 100_000 || time.Duration(n) > 100*365*24*time.Hour/unit {
		return instantText{},
			fmt.Errorf("%s is no time: write how long ago, like 30m, 2h or 7d, or an instant like 2027-01-31T09:00:00Z",
				quoted(text))
	}
	return instantText{text, now.Add(-time.Duration(n) * unit)}, nil
}

// absolute returns the instant in a form that means the same later; "" if it is not set.
func (i instantText) absolute() string {
	if i.at.IsZero() {
		return ""
	}
	return i.at.UTC().Format(time.RFC3339Nano)
}

// get returns a condition in written form; "" if it is not set.
func (f search) get(name string) string {
	switch name {
	case "kind":
		return f.kind
	case "queue":
		return f.queue
	case "key":
		return f.key
	case "error":
		return f.fingerprint
	case "payload":
		return f.payload
	case "status":
		words := make([]string, len(f.statuses))
		for i, s := range f.statuses {
			words[i] = string(s)
		}
		return strings.Join(words, ",")
	case "tenant":
		if !f.tenant.IsZero() {
			return f.tenant.String()
		}
	case "parent":
		if !f.parent.IsZero() {
			return f.parent.String()
		}
	case "since":
		return f.since.text
	case "until":
		return f.until.text
	}
	return ""
}

// parseSearch parses what was typed: conditions like kind:receipt.send, and words, which are statuses or kinds.
func parseSearch(text string, now time.Time) (f search, err error) {
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		var word string
		if word, rest, err = nextWord(rest); err != nil {
			return f, err
		}
		name, value, named := strings.Cut(word, ":")
		if !named || !slices.Contains(names, name) {
			name, value = "kind", word
			if isStatus(word) {
				name = "status"
			}
		}
		if plain, n := readQuoted(value); n > 0 && n == len(value) {
			value = plain
		}
		if value == "" {
			return f, fmt.Errorf("%s has no value", quoted(name+":"))
		}
		if err := f.set(name, value, now); err != nil {
			return f, err
		}
	}
	return f, nil
}

// readQuoted reads a quoted text at the beginning of another, in which a backslash escapes a quotation mark or a
// backslash. It returns the text's length with its quotation marks; 0 if there is none.
func readQuoted(text string) (plain string, length int) {
	if !strings.HasPrefix(text, `"`) {
		return "", 0
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '"':
			return b.String(), i + 1
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
		}
		b.WriteByte(text[i])
	}
	return "", 0
}

// nextWord cuts off a word, which contains spaces only between quotation marks. Marks within a value, as in
// payload:"to":"ada", are part of it.
func nextWord(text string) (word, rest string, err error) {
	before := 0 // position before the value
	if name, _, named := strings.Cut(text, ":"); named && slices.Contains(names, name) {
		before = len(name) + 1
	}
	if _, n := readQuoted(text[before:]); n > 0 {
		if end := before + n; end == len(text) || strings.ContainsRune(" \t\n", rune(text[end])) {
			return text[:end], text[end:], nil
		}
	}
	within := false
	for i, c := range text {
		switch {
		case c == '"':
			within = !within
		case (c == ' ' || c == '\t' || c == '\n') && !within:
			return text[:i], text[i:], nil
		}
	}
	if within {
		return "", "", fmt.Errorf("a quotation mark is open")
	}
	return text, "", nil
}

func isStatus(word string) bool {
	for part := range strings.SplitSeq(word, ",") {
		if _, err := operator.ParseStatus(part); err != nil {
			return false
		}
	}
	return true
}

// text returns the search as people type it.
func (f search) text() string {
	var words []string
	for _, name := range names {
		value := f.get(name)
		if value == "" {
			continue
		}
		if strings.Contains(value, `"`) || strings.ContainsFunc(value, unicode.IsSpace) {
			value = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
		}
		words = append(words, name+":"+value)
	}
	return strings.Join(words, " ")
}

// link returns the URL of its page, with this search and more parameters.
func (f search) link(more ...string) templ.SafeURL {
	for _, name := range names {
		more = append(more, name, f.get(name))
	}
	return link(cmp.Or(f.page, "jobs"), more...)
}

// without returns the search without a condition.
func (f search) without(name string) search {
	switch name {
	case "kind":
		f.kind = ""
	case "queue":
		f.queue = ""
	case "key":
		f.key = ""
	case "error":
		f.fingerprint = ""
	case "payload":
		f.payload = ""
	case "status":
		f.statuses = nil
	case "tenant":
		f.tenant = outbox.ID{}
	case "parent":
		f.parent = outbox.ID{}
	case "since":
		f.since = instantText{}
	case "until":
		f.until = instantText{}
	}
	return f
}

// toggled returns the search with a status added or removed.
func (f search) toggled(s outbox.Status) search {
	if i := slices.Index(f.statuses, s); i >= 0 {
		f.statuses = slices.Delete(slices.Clone(f.statuses), i, i+1)
		return f
	}
	f.statuses = append(slices.Clone(f.statuses), s)
	return f
}

func (f search) has(s outbox.Status) bool { return slices.Contains(f.statuses, s) }

// command returns the command line with the same query.
func (f search) command() string {
	flags := map[string]string{
		"kind": "--kind", "queue": "--queue", "status": "--status", "key": "--key", "tenant": "--tenant",
		"error": "--fingerprint", "parent": "--parent", "payload": "--contains", "since": "--created-since", "until": "--created-until",
	}
	line := "posthaste jobs list"
	if f.page == "live" {
		line = "posthaste jobs tail"
	}
	for _, name := range names {
		value := f.get(name)
		switch name { // what is written counts from the time of the page
		case "since":
			value = f.since.absolute()
		case "until":
			value = f.until.absolute()
		}
		if value != "" && flags[name] != "" {
			line += " " + flags[name] + " " + shellQuoted(value)
		}
	}
	return line
}

// shellQuoted returns a word for a POSIX shell.
func shellQuoted(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:/@%+=-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// searchOf returns the search given by the parameters of a page.
func (v *visit) searchOf() (f search, err error) {
	for _, name := range names {
		value := v.param(name)
		if name == "status" {
			value = strings.Join(
				slices.DeleteFunc(slices.Clone(v.params[name]), func(s string) bool { return s == "" }), ",")
		}
		if value == "" {
			continue
		}
		if err := f.set(name, value, v.now); err != nil {
			return f, refusal{http.StatusBadRequest, "The address cannot be read", upperFirst(err.Error()) + "."}
		}
	}
	return f, nil
}

// filter returns the operator's filter, restricted to the viewer's tenant.
func (v *visit) filter(f search) (operator.Filter, error) {
	of := operator.Filter{
		Kind: f.kind, Queue: f.queue, Key: f.key, Fingerprint: f.fingerprint, Tenant: f.tenant, Statuses: f.statuses,
		Parent: f.parent, Contains: f.payload, CreatedSince: f.since.at, CreatedUntil: f.until.at,
	}
	if f.payload != "" && !v.can(access.PayloadRead) {
		return of, refusal{http.StatusForbidden, "You may not search payloads", "That needs the capability " +
			string(access.PayloadRead) + "."}
	}
	if own := v.tenant(); !own.IsZero() {
		if !f.tenant.IsZero() && f.tenant != own {
			return of, refusal{
				http.StatusForbidden, "That is another tenant",
				"Your login sees the jobs of one tenant.",
			}
		}
		of.Tenant = own
	}
	return of, nil
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:]
}
