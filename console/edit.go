package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// A dead letter is run again with another payload in three steps: a page with the payload in a field, a page that shows
// the differences, whose form carries the new payload, and the act. Each form carries the epoch of the job that was
// shown, so that an edit is refused if somebody else has replaced the payload meanwhile.

// editBytes is the largest payload that can be edited on a page. A form escapes a byte as three at most.
const editBytes = 256 << 10

var editGate = needs(access.AdminMutate, access.PayloadRead)

// editRoutes are the rows of an edit. The POST that previews it is not an act, but only people who may act can see it.
var editRoutes = []route{
	{"GET", "job-edit", editGate, "id reveal", "", (*site).edit},
	{"POST", "job-edit", editGate, "id epoch after payload reveal again forget reason", "", (*site).previewEdit},
	{"POST", "job-edit-do", editGate, "id epoch after payload reveal forget reason", "", (*site).doEdit},
}

// editor is a dead letter's payload in the editor.
type editor struct {
	operator.Job
	text   string // content of the field
	json   bool
	hides  int    // how many values are masked in the text
	mark   string // beginning of the masks
	after  string // the latest act on the job when it was shown
	reveal bool
	hidden []string // JSON pointers to the values that are masked
	faults []fault
}

// fault is a mistake in a payload.
type fault struct {
	pointer string // JSON pointer to the value; "" means the whole
	line    int    // of the text; 0 if unknown
	excerpt string // of that line
	reason  string
}

// storedPayload is what the edit started from: the payload, indented if its type is JSON, with values to be masked
// replaced by numbered masks.
type storedPayload struct {
	text   string
	json   bool
	laid   bool     // indented, and stored without space; other JSON keeps its bytes
	masked []string // the values behind the masks, as JSON; the first mask is number 1
	mark   string   // beginning of the masks, which the stored text contains nowhere
	hidden func(path []string) bool
}

func (s *site) storedPayload(j operator.Job, reveal bool) (storedPayload, error) {
	refuse := func(why string) (storedPayload, error) {
		return storedPayload{}, refusal{http.StatusConflict, "This payload cannot be edited here", why}
	}
	kind, _, _ := mime.ParseMediaType(j.ContentType)
	text := string(j.Payload)
	switch {
	case j.Status != outbox.Failed && j.Status != outbox.Dead:
		return storedPayload{}, &operator.StatusError{ID: j.ID, Status: j.Status, Act: "replay"}
	case j.PastDeadline:
		return storedPayload{}, operator.ErrPastDeadline
	case strings.HasPrefix(kind, protect.SealedPrefix):
		return refuse("It is sealed: enqueue the job again, and dismiss this one.")
	case !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0:
		return refuse("It is no text. " + editByCommand)
	}
	named := kind == "application/json" || strings.HasSuffix(kind, "+json")
	p := storedPayload{text: text, json: (named || strings.ContainsAny(text[:min(1, len(text))], "{[")) &&
		json.Valid(j.Payload)}
	p.laid = p.json && named
	switch {
	case !p.json && !reveal && s.contentOf(j.Payload, j.ContentType, false, true).masked > 0:
		return storedPayload{}, maskedText
	case p.laid:
		laid, ok := laidOut(text, 2*editBytes)
		p.text = laid
		if !ok {
			return refuse("With a value on each line it is larger than the " + size(editBytes) + " that pages edit. " +
				editByCommand)
		}
	case strings.Contains(text, "\r"): // a form would change line ends
		return refuse("It has line ends that a browser changes. " + editByCommand)
	}
	if len(p.text) > editBytes {
		return refuse("It has " + size(len(p.text)) + ", and pages edit up to " + size(editBytes) + ". " +
			editByCommand)
	}
	if p.json && !reveal {
		p.hidden = s.mask(false)
		p.mask()
	}
	return p, nil
}

// maskedText refuses to edit a payload in which no mask can stand for a value, as one can in JSON.
var maskedText = refusal{
	http.StatusConflict, "This payload can only be edited with all shown",
	"It has values that are masked, and is not one JSON text.",
}

// notEditable explains why a page cannot edit the payload, and leads to the page that can, if there is one.
func (v *visit) notEditable(j operator.Job, err error) error {
	if errors.Is(err, maskedText) {
		v.again = place{"Edit with all shown", string(link("job-edit", "id", j.ID.String(), "reveal", "1"))}
	}
	return v.tooLate(err)
}

const editByCommand = "Use “posthaste dlq replay ID --payload @FILE”."

// maskOf returns the mask of the nth hidden value. A numbered mask means the same value wherever a person moves it; a
// mask by place would mean another value's secret once an element before it is removed.
func (p *storedPayload) maskOf(n int) string { return `"` + p.mark + " " + strconv.Itoa(n) + `"` }

// mask hides values.
func (p *storedPayload) mask() {
	for p.mark = masked; strings.Contains(p.text, p.mark); p.mark += "•" {
	}
	p.text = replaceValues(p.text, func(path []string, value string) string {
		if !p.hidden(path) {
			return value
		}
		p.masked = append(p.masked, value)
		return p.maskOf(len(p.masked))
	})
}

// unmask puts the stored values in place of their masks, and reports masks that stand for none, or at a place where the
// value would be shown.
func (p *storedPayload) unmask(text string) (whole string, faults []fault) {
	if len(p.masked) == 0 {
		return text, nil
	}
	whole = replaceValues(text, func(path []string, value string) string {
		rest, isMask := strings.CutPrefix(value, `"`+p.mark)
		if !isMask {
			return value
		}
		n, err := strconv.Atoi(strings.Trim(rest, ` "`))
		reason := ""
		switch {
		case err != nil || n < 1 || n > len(p.masked) || value != p.maskOf(n):
			reason = "stands for no hidden value: write the value, or one of the masks as it was"
		case !p.hidden(path):
			reason = "is a mask at a place whose value is shown: a hidden value can only stand where it stays hidden"
		default:
			return p.masked[n-1]
		}
		faults = append(faults, fault{pointer: pointerOf(path), reason: reason})
		return value
	})
	return whole, faults
}

// spot is a value in a JSON text.
type spot struct {
	path     []string
	from, to int // of a scalar; for others, the opening bracket
	scalar   bool
}

// spotsOf yields the values of a JSON text. The path is valid until the next one.
func spotsOf(text string) iter.Seq[spot] {
	type level struct {
		array bool
		name  bool // the next string is a name
		n     int
	}
	return func(yield func(spot) bool) {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		var levels []level
		var path []string
		for {
			before := int(d.InputOffset())
			token, err := d.Token()
			if err != nil {
				return
			}
			to := int(d.InputOffset())
			from := to - len(strings.TrimLeft(text[before:to], " \t\r\n,:"))
			delim, isDelim := token.(json.Delim)
			if delim == '}' || delim == ']' {
				levels, path = levels[:len(levels)-1], path[:len(path)-1]
				continue
			}
			if n := len(levels); n > 0 && levels[n-1].name {
				levels[n-1].name = false
				path[n-1], _ = token.(string)
				continue
			} else if n > 0 {
				if levels[n-1].array {
					path[n-1] = strconv.Itoa(levels[n-1].n)
				}
				levels[n-1].n++
				levels[n-1].name = !levels[n-1].array
			}
			if !yield(spot{path, from, to, !isDelim}) {
				return
			}
			if isDelim {
				levels, path = append(levels, level{array: delim == '[', name: delim == '{'}), append(path, "")
			}
		}
	}
}

// replaceValues replaces the scalar values of a JSON text, and leaves every other byte unchanged.
func replaceValues(text string, replace func(path []string, value string) string) string {
	var b strings.Builder
	done := 0
	for p := range spotsOf(text) {
		if p.scalar {
			b.WriteString(text[done:p.from])
			b.WriteString(replace(p.path, text[p.from:p.to]))
			done = p.to
		}
	}
	b.WriteString(text[done:])
	return b.String()
}

// pointerOf returns the JSON pointer of a path (RFC 6901).
func pointerOf(path []string) string {
	text := ""
	for _, name := range path {
		text += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	return text
}

// locate finds the lines of faults: that of the value, or of the object from which it is missing.
func locate(text string, faults []fault) {
	type search struct {
		path          []string
		matched, best int // names of the path shared with the previous value; and the most so far
	}
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	searches := make([]search, len(faults))
	for i, f := range faults {
		for name := range strings.SplitSeq(strings.TrimPrefix(f.pointer, "/"), "/") {
			if f.pointer != "" {
				searches[i].path = append(searches[i].path, unescape.Replace(name))
			}
		}
	}
	line, counted := 1, 0
	for at := range spotsOf(text) {
		line, counted = line+strings.Count(text[counted:at.from], "\n"), at.from
		depth := len(at.path)
		for i := range searches {
			s := &searches[i]
			s.matched = min(s.matched, max(depth-1, 0))
			if depth > 0 && s.matched == depth-1 && depth <= len(s.path) && s.path[depth-1] == at.path[depth-1] {
				s.matched = depth
			}
			if s.matched == depth && depth >= s.best {
				s.best, faults[i].line = depth, line
			}
		}
	}
	all := strings.Split(text, "\n")
	for i := range faults {
		if n := faults[i].line; n > 0 {
			faults[i].excerpt = shortLine(all[n-1])
		}
	}
	slices.SortStableFunc(faults, func(a, b fault) int { return a.line - b.line })
}

func shortLine(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// edited returns the bytes to run the job with, from the edited text, or what is wrong with them.
func (p *storedPayload) edited(text string) (payload []byte, faults []fault) {
	if !p.json {
		return []byte(text), nil
	}
	var wrong *json.SyntaxError
	if err := json.Unmarshal([]byte(text), new(json.RawMessage)); errors.As(err, &wrong) {
		at := min(max(int(wrong.Offset)-1, 0), len(text))
		begin := strings.LastIndexByte(text[:at], '\n') + 1
		line, _, _ := strings.Cut(text[begin:], "\n")
		reason := fmt.Sprintf("is not JSON: at character %d, %s", utf8.RuneCountInString(text[begin:at])+1,
			wrong.Error())
		return nil, []fault{{line: 1 + strings.Count(text[:at], "\n"), excerpt: shortLine(line), reason: reason}}
	}
	whole, faults := p.unmask(text)
	if len(faults) > 0 {
		locate(text, faults)
		return nil, faults
	}
	if !p.laid {
		return []byte(whole), nil
	}
	var b bytes.Buffer
	_ = json.Compact(&b, []byte(whole)) // it is valid
	return b.Bytes(), nil
}

var payloadsStay = refusal{
	http.StatusForbidden, "This console may not change payloads",
	"Its database login is a member of outbox_api only, which the " +
		"database lets change everything but what jobs carry. Use “posthaste dlq replay ID --payload @FILE” with a login of outbox_worker. Nothing was changed.",
}

func deadLetter(j operator.Job) bool { return j.Status == outbox.Failed || j.Status == outbox.Dead }

// whyNoEdit returns why payloads cannot be edited here; "" if they can.
func (v *visit) whyNoEdit() (string, error) {
	if why := v.whyNot(editGate); why != "" {
		return why, nil
	}
	may, err := v.site.editing.allowed(v)
	if err != nil || may {
		return "", err
	}
	return "Needs a database login that may change payloads", nil
}

// editing caches for a minute whether the console's login may change payloads: a grant takes effect without a restart.
type editing struct{ latest atomic.Pointer[editingAnswer] }

type editingAnswer struct {
	at  time.Time
	may bool
}

func (e *editing) allowed(v *visit) (bool, error) {
	if known := e.latest.Load(); known != nil && v.now.Sub(known.at) < time.Minute {
		return known.may, nil
	}
	may, err := v.operator.MayEditPayloads(v.ctx())
	if err == nil {
		e.latest.Store(&editingAnswer{v.now, may})
	}
	return may, err
}

// edit shows the first step: the payload in a field.
func (s *site) edit(v *visit) error {
	j, err := s.jobOf(v)
	if err != nil {
		return err
	}
	reveal := v.reveals()
	p, err := s.storedPayload(j, reveal)
	if err != nil {
		return v.notEditable(j, err)
	}
	if may, err := s.editing.allowed(v); err != nil {
		return err
	} else if !may {
		return payloadsStay
	}
	after, err := v.shownAct(j.ID)
	if err != nil {
		return err
	}
	if reveal {
		if err := v.recordRead(j, "edit"); err != nil {
			return err
		}
	}
	return v.render(editPage(v, editor{
		Job: j, text: p.text, json: p.json, hides: len(p.masked), mark: p.mark,
		after: after, reveal: reveal,
	}))
}

// readEdit reads a form: the job, which must be as it was shown, and its new payload or the mistakes in it.
func (s *site) readEdit(v *visit) (e editor, was storedPayload, payload []byte, err error) {
	epoch, err := strconv.ParseInt(v.param("epoch"), 10, 64)
	if err != nil {
		return e, was, nil, unreadable("epoch", "is no number")
	}
	j, err := s.jobOf(v)
	if err != nil {
		return e, was, nil, err
	}
	if j.Epoch != epoch {
		return e, was, nil, v.tooLate(&operator.StatusError{ID: j.ID, Status: j.Status, Act: "replay"})
	}
	e = editor{
		Job: j, text: strings.ReplaceAll(v.param("payload"), "\r\n", "\n"), after: v.param("after"),
		reveal: v.param("reveal") != "",
	}
	if was, err = s.storedPayload(j, e.reveal); err != nil {
		return e, was, nil, v.notEditable(j, err)
	}
	e.json, e.hides, e.mark = was.json, len(was.masked), was.mark
	if was.hidden != nil {
		for at := range spotsOf(e.text) {
			if was.hidden(at.path) {
				e.hidden = append(e.hidden, pointerOf(at.path))
			}
		}
	}
	payload, e.faults = was.edited(e.text)
	return e, was, payload, nil
}

// checked returns an operator that validates new payloads against the schemas of their kinds.
func (v *visit) checked(o *operator.Operator, epoch int64) *operator.Operator {
	return o.CheckedBy(v.site.config.Kinds).AtEpoch(epoch)
}

// shown returns the reason why the schema refuses the value at a pointer, without what it may quote: a masked value.
func (e *editor) shown(pointer, reason string) string {
	quotes := slices.ContainsFunc(e.hidden, func(hidden string) bool {
		return hidden == pointer || strings.HasPrefix(hidden, pointer+"/")
	})
	if quotes {
		return "is not what the schema allows; its reason may quote a masked value, and is left out"
	}
	return reason
}

// faultsOf extracts mistakes in a payload from an error; nil if it contains anything else.
func (e *editor) faultsOf(err error) (faults []fault) {
	all := []error{err} // nil counts as no error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, one := range all {
		bad, ok := errors.AsType[*outbox.InvalidError](one)
		if !ok {
			return nil
		}
		pointer, _ := strings.CutPrefix(bad.Field, "Args")
		if !strings.HasPrefix(pointer, "/") {
			pointer = ""
		}
		faults = append(faults, fault{pointer: pointer, reason: e.shown(pointer, bad.Reason)})
	}
	if e.json {
		locate(e.text, faults)
	}
	return faults
}

// notEdited explains why the database refused the edit.
func (v *visit) notEdited(err error) error {
	if pgsession.State(err) == pgsession.InsufficientPrivilege {
		return payloadsStay
	}
	return v.tooLate(err)
}

// previewEdit shows the second step: the differences, or what is wrong.
func (s *site) previewEdit(v *visit) error {
	e, was, payload, err := s.readEdit(v)
	if err != nil {
		return err
	}
	if e.reveal {
		if err := v.recordRead(e.Job, "edit"); err != nil {
			return err
		}
	}
	if len(e.faults) == 0 && v.param("again") == "" {
		err = v.checked(v.operator, e.Epoch).WouldReplayEdited(v.ctx(), e.ID, payload)
		if e.faults = e.faultsOf(err); err != nil && len(e.faults) == 0 {
			return v.notEdited(err)
		}
	}
	if len(e.faults) > 0 {
		v.status = http.StatusUnprocessableEntity
	}
	if len(e.faults) > 0 || v.param("again") != "" {
		return v.render(editPage(v, e))
	}
	now := e.text
	if was.laid {
		now, _ = laidOut(now, laidBytes) // without indentation it differs as a whole
	}
	changed := diff(strings.Split(was.text, "\n"), strings.Split(now, "\n"))
	c := confirmation{
		title: "Run job " + shortID(e.ID) + " again with another payload", action: "job-edit-do", label: "Run again",
		back: link("job", "id", e.ID.String()), crumb: e.Kind + " " + shortID(e.ID), again: "job-edit",
		will: []string{
			fmt.Sprintf("The dead letter gets this payload, %s in place of %s, and becomes pending again, with all its %d attempts.", size(len(payload)), size(len(e.Payload)), e.MaxAttempts),
			"It starts as soon as a worker is free. What its handler did before may happen again.",
			"The audit keeps the payload that it had, up to 64 KiB.",
		},
		hidden: []field{
			{"id", e.ID.String()}, {"epoch", strconv.FormatInt(e.Epoch, 10)}, {"after", e.after}, {"payload", e.text},
		},
		command: "posthaste dlq replay " + e.ID.String() + " --payload @payload.json",
	}
	if e.reveal {
		c.hidden = append(c.hidden, field{"reveal", "1"})
	}
	if e.hides > 0 {
		c.will = append(c.will, "Masked values that were not changed stay as they are stored.")
	}
	remembered, err := v.remembered(e.ID)
	if err != nil {
		return err
	}
	return v.render(editConfirmPage(v, c, changed, remembered))
}

// remembered describes what a job keeps of its old payload; "" if nothing.
func (v *visit) remembered(id outbox.ID) (string, error) {
	steps, err := v.operator.StepsWithoutResults(v.ctx(), id)
	if err != nil {
		return "", err
	}
	at, err := v.operator.Checkpoint(v.ctx(), id)
	if err != nil {
		return "", err
	}
	var what []string
	if at.Data != nil {
		what = append(what, "its checkpoint")
	}
	if len(steps) > 0 {
		names := make([]string, len(steps))
		for i, step := range steps {
			names[i] = step.Name
		}
		what = append(what, "what "+shortLine(plural(len(steps), "step")+" returned: "+strings.Join(names, ", ")))
	}
	return strings.Join(what, " and "), nil
}

// doEdit performs the third step.
func (s *site) doEdit(v *visit) error {
	e, _, payload, err := s.readEdit(v)
	if err != nil {
		return err
	}
	if len(e.faults) == 0 {
		by := v.checked(v.operator.Because(v.param("reason")), e.Epoch)
		if v.param("forget") != "" {
			by = by.Forgetting()
		}
		err = by.ReplayEdited(v.ctx(), e.ID, payload)
		if e.faults = e.faultsOf(err); err != nil && len(e.faults) == 0 {
			return v.notEdited(err)
		}
	}
	if len(e.faults) > 0 { // the schema was replaced meanwhile, or the form was written by hand
		v.status = http.StatusUnprocessableEntity
		return v.render(editPage(v, e))
	}
	return v.redirect(link("job", "id", e.ID.String()))
}

// change is a line of a difference: '-', '+', ' ', or '…' for omitted lines.
type change struct {
	kind rune
	text string
}

const (
	diffContext = 3       // lines around a change
	diffCells   = 4 << 20 // size of the comparison table; beyond it, all lines count as replaced
)

// diff returns the changes, by lines, that turn a into b.
func diff(a, b []string) []change {
	front := 0
	for front < min(len(a), len(b)) && a[front] == b[front] {
		front++
	}
	back := 0
	for back < min(len(a), len(b))-front && a[len(a)-1-back] == b[len(b)-1-back] {
		back++
	}
	var all []change
	add := func(kind rune, lines []string) {
		for _, line := range lines {
			all = append(all, change{kind, line})
		}
	}
	add(' ', a[:front])
	all = append(all, diffMiddle(a[front:len(a)-back], b[front:len(b)-back])...)
	add(' ', a[len(a)-back:])
	return shortened(all)
}

// diffMiddle compares by the longest common subsequence.
func diffMiddle(a, b []string) (all []change) {
	width := len(b) + 1
	if len(a)*len(b) > diffCells {
		for _, line := range a {
			all = append(all, change{'-', line})
		}
		for _, line := range b {
			all = append(all, change{'+', line})
		}
		return all
	}
	common := make([]int32, (len(a)+1)*width) // of a[i:] and b[j:], at i*width+j
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, change{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[(i+1)*width+j] >= common[i*width+j+1]:
			all = append(all, change{'-', a[i]})
			i++
		default:
			all = append(all, change{'+', b[j]})
			j++
		}
	}
	return all
}

// shortened omits lines that are far from a change; nil if nothing has changed.
func shortened(all []change) (short []change) {
	near := make([]bool, len(all))
	changed := false
	for i, c := range all {
		if c.kind != ' ' {
			changed = true
			for k := max(i-diffContext, 0); k <= min(i+diffContext, len(all)-1); k++ {
				near[k] = true
			}
		}
	}
	if !changed {
		return nil
	}
	for i, c := range all {
		if near[i] {
			short = append(short, c)
		} else if i == 0 || near[i-1] {
			short = append(short, change{'…', ""})
		}
	}
	return short
}

// editRows returns how many lines the field shows.
func editRows(text string) int { return min(max(strings.Count(text, "\n")+2, 6), 30) }
