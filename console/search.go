package console

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"regexp"
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
	kind, queue, key, fingerprint, code, worker, idPrefix, payload string

	tenant     outbox.ID
	parent     outbox.ID // whose follow-ups are listed
	minAttempt int
	statuses   []outbox.Status

	since, until, finishedSince, finishedUntil instantText

	page string // the page that it filters; "" means jobs
}

// condition is a condition of a search.
type condition struct {
	name, hint string            // the hint says what is written behind the name
	flag       string            // of the command line
	needs      access.Capability // of those who may search by it, in addition to jobs.read
}

// searchConditions are all conditions, in the order in which they are written.
var searchConditions = []condition{
	{"kind", "a kind of job, like receipt.send", "--kind", ""},
	{"queue", "a queue", "--queue", ""},
	{"status", "one or more, like pending,running", "--status", ""},
	{"key", "a key of jobs that limit or wait for each other", "--key", ""},
	{"tenant", "root, or the id of a tenant", "--tenant", ""},
	{"error", "the code of the last error, like http_503, or the fingerprint of dead letters that failed alike", "--fingerprint", ""},
	{"code", "the code of the last error", "--error-code", ""},
	{"worker", "the worker that runs the job, or has ended it", "--worker", access.AdminRead},
	{"attempt", "3 finds jobs that have reached their third attempt", "--min-attempt", access.AdminRead},
	{"id_prefix", "the beginning of an id, like 01976f0e; id: is enough", "--id-prefix", ""},
	{"payload", "text in the payload or in the headers", "--contains", access.PayloadRead},
	{"since", "created at or after a time: 2h (ago), 14:02 or 2026-11-25 14:02", "--created-since", ""},
	{"until", "created before a time, in the same forms", "--created-until", ""},
	{"finished_since", "ended at or after a time", "--finished-since", ""},
	{"finished_until", "ended before a time", "--finished-until", ""},
	{"parent", "the id of a job, for its follow-ups", "--parent", ""},
}

// names are the names of the conditions.
var names = func() (all []string) {
	for _, c := range searchConditions {
		all = append(all, c.name)
	}
	return all
}()

// aliases are other names of conditions, for people who type them. The parameter “id” has other uses in a URL.
var aliases = map[string]string{"id": "id_prefix"}

// The conditions of each of these types.
func (f *search) texts() map[string]*string {
	return map[string]*string{
		"kind": &f.kind, "queue": &f.queue, "key": &f.key, "error": &f.fingerprint, "code": &f.code, "worker": &f.worker,
		"id_prefix": &f.idPrefix, "payload": &f.payload,
	}
}

func (f *search) ids() map[string]*outbox.ID {
	return map[string]*outbox.ID{"tenant": &f.tenant, "parent": &f.parent}
}

func (f *search) times() map[string]*instantText {
	return map[string]*instantText{
		"since": &f.since, "until": &f.until, "finished_since": &f.finishedSince, "finished_until": &f.finishedUntil,
	}
}

// set sets a condition by its name. A time counts from now, and is in its zone. The error is a sentence for the person
// who wrote it.
func (f *search) set(name, value string, now time.Time) (err error) {
	if text := f.texts()[name]; text != nil {
		*text = value
		if name == "id_prefix" {
			*text, err = readIDPrefix(value)
		}
		return err
	}
	if id := f.ids()[name]; id != nil {
		*id, err = readID(name, value)
		return err
	}
	if at := f.times()[name]; at != nil {
		*at, err = parsePast(value, now)
		return err
	}
	switch name {
	case "status":
		return f.setStatuses(value)
	case "attempt":
		if f.minAttempt, err = strconv.Atoi(value); err != nil || f.minAttempt < 1 || f.minAttempt > math.MaxInt32 {
			return fmt.Errorf("%s is no number of an attempt: write 3 for jobs that have reached their third", quoted(value))
		}
		return nil
	}
	return fmt.Errorf("%s is no condition: there are %s", quoted(name), strings.Join(names, ", "))
}

// isFingerprint matches the fingerprint of an error: other words are codes.
var isFingerprint = regexp.MustCompile(`^[0-9a-f]{16}$`)

// readIDPrefix reads the beginning of an id, with or without the end that lists show: 01976f0e…cdef.
func readIDPrefix(text string) (string, error) {
	const pattern = "00000000-0000-0000-0000-000000000000"
	prefix, _, _ := strings.Cut(strings.ToLower(text), "…")
	_, err := outbox.ParseID(prefix + pattern[min(len(prefix), len(pattern)):])
	if prefix == "" || err != nil {
		return "", fmt.Errorf("%s is no beginning of an id: write hex digits and hyphens, like 01976f0e-7a5c", quoted(text))
	}
	return prefix, nil
}

// readID reads the id of a tenant or a job.
func readID(name, text string) (id outbox.ID, err error) {
	switch {
	case name == "tenant" && text == tenantName(outbox.RootTenant):
		return outbox.RootTenant, nil
	case idPart.MatchString(text):
		return id, fmt.Errorf("%s is a shortened id, which several can share: the whole one has 36 characters",
			quoted(text))
	}
	if id, err = outbox.ParseID(text); err != nil || id.IsZero() && name == "parent" { // zero would mean any
		return id, fmt.Errorf("%s is no %s’s id: it has 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab",
			quoted(text), map[string]string{"tenant": "tenant", "parent": "job"}[name])
	}
	return id, nil
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

// get returns a condition in written form; "" if it is not set.
func (f search) get(name string) string {
	if text := f.texts()[name]; text != nil {
		return *text
	}
	if id := f.ids()[name]; id != nil && !id.IsZero() {
		return id.String()
	}
	if at := f.times()[name]; at != nil {
		return at.text
	}
	switch {
	case name == "status":
		words := make([]string, len(f.statuses))
		for i, s := range f.statuses {
			words[i] = string(s)
		}
		return strings.Join(words, ",")
	case name == "attempt" && f.minAttempt > 0:
		return strconv.Itoa(f.minAttempt)
	}
	return ""
}

// hasOther reports whether the search has a condition other than these.
func (f search) hasOther(than []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return f.get(name) != "" && !slices.Contains(than, name) })
}

// parseSearch parses what was typed: conditions like kind:receipt.send, and words, which are statuses or kinds.
func parseSearch(text string, now time.Time) (f search, err error) {
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		var word string
		if word, rest, err = nextWord(rest); err != nil {
			return f, err
		}
		name, value, named := strings.Cut(word, ":")
		name = cmp.Or(aliases[name], name)
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
		if name == "error" && !isFingerprint.MatchString(value) {
			name = "code"
		}
		if f.times()[name] != nil {
			value, rest = longestTime(value, rest, now)
		}
		if err := f.set(name, value, now); err != nil {
			return f, err
		}
	}
	return f, nil
}

// longestTime adds the following words to a time as far as they belong to it, as in since:2026-11-25 14:02.
func longestTime(value, rest string, now time.Time) (longest, left string) {
	longest, left = value, rest
	for range 4 { // 2 h 5 min ago
		word, after, err := nextWord(strings.TrimSpace(rest))
		if err != nil || word == "" {
			break
		}
		value, rest = value+" "+word, after
		if _, err := parsePast(value, now); err == nil {
			longest, left = value, rest
		}
	}
	return longest, left
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
	if name, _, named := strings.Cut(text, ":"); named && slices.Contains(names, cmp.Or(aliases[name], name)) {
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
	if text := f.texts()[name]; text != nil {
		*text = ""
	}
	if id := f.ids()[name]; id != nil {
		*id = outbox.ID{}
	}
	if at := f.times()[name]; at != nil {
		*at = instantText{}
	}
	switch name {
	case "status":
		f.statuses = nil
	case "attempt":
		f.minAttempt = 0
	}
	return f
}

// and returns the search with another value of a condition that is a text.
func (f search) and(name, value string) search {
	*f.texts()[name] = value
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
	line := "posthaste jobs list"
	if f.page == "live" {
		line = "posthaste jobs tail"
	}
	for _, c := range searchConditions {
		value := f.get(c.name)
		if at := f.times()[c.name]; at != nil { // what is written counts from the time of the page
			value = at.absolute()
		}
		if value != "" {
			line += " " + c.flag + " " + shellQuoted(value)
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
		if err := f.set(name, value, v.now.In(v.zone)); err != nil {
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
		Worker: f.worker, ErrorCode: f.code, MinAttempt: f.minAttempt, IDPrefix: f.idPrefix,
		FinishedSince: f.finishedSince.at, FinishedUntil: f.finishedUntil.at,
	}
	for _, c := range searchConditions {
		if f.get(c.name) != "" && c.needs != "" && !v.can(c.needs) {
			return of, refusal{
				http.StatusForbidden, "You may not search by " + c.name, "That needs the capability " + string(c.needs) + ".",
			}
		}
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
