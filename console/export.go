package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// mostExported is how many rows of a list are exported.
const mostExported = 10_000

// A list in which few rows match is read to its end for them, however long it is: so few exports are under way at once,
// each leaves the database as long a pause after a page as the page took, up to a limit, and ends after exportTime.
const (
	maxExports    = 4 // of all callers
	tenantExports = 3 // until so many are under way, callers of one tenant begin another: one place is for operators
	maxOwnExports = 1
	exportTime    = 5 * time.Minute
	exportPause   = 100 * time.Millisecond
)

var errExports = refusal{
	http.StatusTooManyRequests, "Too many files are being exported",
	"Wait until your other export has ended, or try again in a moment.",
}

// exportParams are the additional parameters of an exported list: the format is csv or jsonl.
const exportParams = " format"

// exportedTable is a list that is written while it is read, a page at a time.
type exportedTable struct {
	name    string // of the file
	columns []string
	json    []string // those of the columns whose cells are JSON: numbers, and what the audit has
	// page returns the next rows, each with a value for each column, and whether there may be more. It takes bounded
	// time.
	page func(context.Context) (rows [][]string, more bool, err error)
}

func (s *site) exportJobs(v *visit) error {
	search, err := v.searchOf()
	if err != nil {
		return err
	}
	f, err := v.filter(search)
	if err != nil {
		return err
	}
	f.Limit = operator.MaxLimit
	columns := []string{
		"id", "tenant", "status", "kind", "queue", "created_at", "run_at", "started_at", "finished_at",
		"error",
	}
	if v.can(access.AdminRead) {
		columns = append(columns, "attempt", "max_attempts")
	}
	page := func(ctx context.Context) (rows [][]string, more bool, err error) {
		page, err := v.operator.Page(ctx, f)
		for _, j := range page.Jobs {
			rows = append(rows, v.jobCells(j))
		}
		f.Before = page.Next
		return rows, !f.Before.IsZero(), err
	}
	return v.export(exportedTable{"jobs", columns, []string{"attempt", "max_attempts"}, page})
}

func (v *visit) jobCells(j operator.Job) []string {
	cells := []string{
		j.ID.String(), j.Tenant.String(), string(j.Status), j.Kind, j.Queue, exported(j.CreatedAt), exported(j.RunAt),
		exported(j.StartedAt),
		exported(j.FinishedAt), v.mistake(j),
	}
	if v.can(access.AdminRead) {
		cells = append(cells, strconv.Itoa(j.Attempt), strconv.Itoa(j.MaxAttempts))
	}
	return cells
}

func (s *site) exportLetters(v *visit) error {
	f, err := v.letterFilter()
	if err != nil {
		return err
	}
	columns := []string{
		"id", "tenant", "status", "kind", "queue", "key", "created_at", "failed_at", "attempt",
		"error_code", "error_message", "fingerprint",
	}
	var before outbox.ID
	return v.export(exportedTable{
		"dead-letters", columns,
		[]string{"attempt"},
		func(ctx context.Context) (rows [][]string, more bool, err error) {
			page, err := v.operator.DeadLetterPage(ctx, f, before, operator.MaxLimit)
			for _, l := range page.DeadLetters {
				rows = append(rows, []string{
					l.ID.String(), l.Tenant.String(), string(l.Status), l.Kind, l.Queue, l.Key, exported(l.CreatedAt),
					exported(l.FailedAt),
					strconv.Itoa(l.Attempt), l.ErrorCode, l.ErrorMessage, l.Fingerprint,
				})
			}
			before = page.Next
			return rows, !before.IsZero(), err
		},
	})
}

func (s *site) exportAudit(v *visit) error {
	f, err := v.auditFilter()
	if err != nil {
		return err
	}
	f.Limit, f.Before = operator.MaxLimit, 0
	columns := []string{
		"id", "at", "actor", "act", "tenant", "job", "queue", "target", "changes", "before", "after", "reason",
		"request",
	}
	page := func(ctx context.Context) (rows [][]string, more bool, err error) {
		page, err := v.operator.AuditPage(ctx, f)
		for _, e := range page.Entries {
			e = v.visible(e)
			rows = append(rows, []string{
				strconv.FormatInt(e.ID, 10), exported(e.At), e.Actor, e.Act, exportedID(e.Tenant), exportedID(e.JobID),
				e.Queue, e.Target, strings.Join(v.changes(e), ", "), string(e.Before), string(e.After), e.Reason,
				e.RequestID,
			})
		}
		f.Before = page.Next
		return rows, page.Next > 0, err
	}
	return v.export(exportedTable{"audit", columns, []string{"id", "before", "after"}, page})
}

// exported returns a time in the form for a file; "" for none.
func exported(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return operator.Presentable(t).Format(time.RFC3339Nano)
}

func exportedID(id outbox.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// export answers with a file of up to mostExported rows, written while they are read. It goes on for exportTime, while
// the client reads it and the login is valid; each page has the time of one. If reading fails after the answer has
// begun, the connection is cut: a file that ends early must not look whole.
func (v *visit) export(t exportedTable) error {
	write, contentType, ending := writeCSV, "text/csv; charset=utf-8; header=present", "csv"
	switch v.param("format") {
	case "csv":
	case "jsonl":
		write, contentType, ending = writeJSON, "application/x-ndjson; charset=utf-8", "jsonl"
	default:
		return unreadable("format", "is neither csv nor jsonl")
	}
	if v.r.ContentLength != 0 {
		return watch.ErrBody
	}
	leave, ok := v.site.exports.take(v.caller(), v.mostExports(), maxOwnExports)
	if !ok {
		return errExports
	}
	defer leave()
	rows, more, err := t.page(v.ctx())
	if err != nil {
		return err
	}
	v.leave()
	ctx, end := v.site.whileAllowed(v)
	defer end()
	h := v.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Disposition", "attachment; filename="+t.name+"-"+v.now.UTC().Format("20060102-150405")+"."+ending)
	connection := http.NewResponseController(v.w)
	_ = connection.SetReadDeadline(time.Time{}) // it would end ctx; not every writer has one
	v.w.WriteHeader(http.StatusOK)
	if v.r.Method == http.MethodHead {
		return nil
	}
	if ending == "csv" {
		err = writeCSV(v.w, t, t.columns)
	}
	written, cut := 0, false // cut is known only once there is a row too many: the last pages may be empty
	for begun := time.Now(); err == nil; rows, more, err = t.next(ctx) {
		_ = connection.SetWriteDeadline(time.Now().Add(v.site.config.Timeout))
		cut = len(rows) > mostExported-written || more && time.Since(begun) > exportTime
		rows = rows[:min(len(rows), mostExported-written)]
		for i := 0; i < len(rows) && err == nil; i++ {
			err = write(v.w, t, rows[i])
		}
		written += len(rows)
		_ = connection.Flush() // the browser shows a file, and a proxy sees progress
		if err != nil || !more || cut {
			break
		}
	}
	if err == nil && cut {
		err = writeCut(v.w, ending, t, written)
	}
	if err != nil {
		v.site.log.LogAttrs(v.ctx(), slog.LevelWarn, "export was cut off", slog.String("request_id", v.id),
			slog.Any("err", err))
		panic(http.ErrAbortHandler)
	}
	return nil
}

// mostExports returns how many exports may be under way once this viewer has begun one.
func (v *visit) mostExports() int {
	if v.who.AllTenants {
		return maxExports
	}
	return tenantExports
}

// next returns the next page, after a pause.
func (t exportedTable) next(ctx context.Context) (rows [][]string, more bool, err error) {
	begun := time.Now()
	rows, more, err = t.page(ctx)
	_ = backoff.Sleep(ctx, min(time.Since(begun), exportPause)) // if ctx ends, the next page fails
	return rows, more, err
}

// inner matches what looks like a formula within a cell to a spreadsheet that splits lines at semicolons or tabs, as in
// languages that write decimals with a comma: it does not recognize the quotation marks around the cell, and a line end
// ends its line.
var inner = regexp.MustCompile(`([;\t\r\n])([" ]*[=+\-@＝＋－＠])`)

// writeCut writes the last line of a file that does not have the whole list.
func writeCut(w io.Writer, ending string, t exportedTable, written int) error {
	if ending == "csv" {
		cells := make([]string, len(t.columns)) // as many as in each line
		cells[0] = "only the first " + strconv.Itoa(written) + " rows are here"
		return writeCSV(w, t, cells)
	}
	_, err := io.WriteString(w, `{"only_the_first":`+strconv.Itoa(written)+"}\n")
	return err
}

// writeCSV writes a line. A cell that a spreadsheet would take for a formula begins with an apostrophe.
func writeCSV(w io.Writer, _ exportedTable, cells []string) error {
	harmless := make([]string, len(cells))
	for i, cell := range cells {
		harmless[i] = cell
		if cell != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", []rune(cell)[0]) {
			harmless[i] = "'" + cell
		}
		harmless[i] = inner.ReplaceAllString(harmless[i], "$1'$2")
	}
	var line bytes.Buffer
	c := csv.NewWriter(&line)
	if err := c.Write(harmless); err != nil {
		return err
	}
	c.Flush()
	_, err := w.Write(line.Bytes())
	return err
}

// writeJSON writes a line: an object with its members in the order of the columns. Those that are not JSON are strings.
func writeJSON(w io.Writer, t exportedTable, cells []string) error {
	var line bytes.Buffer
	for i, cell := range cells {
		name, _ := json.Marshal(t.columns[i])
		text, err := json.Marshal(cell)
		if err != nil {
			return err
		}
		if slices.Contains(t.json, t.columns[i]) {
			text = []byte(cmp.Or(cell, "null"))
		}
		line.WriteByte("{,"[min(i, 1)])
		line.Write(name)
		line.WriteByte(':')
		line.Write(text)
	}
	line.WriteString("}\n")
	_, err := w.Write(line.Bytes())
	return err
}

// exportLink returns the URL of the file with this page's list, from its beginning.
func (v *visit) exportLink(path, format string) templ.SafeURL {
	q := v.lasting()
	for _, place := range []string{"before", "limit", "q"} {
		q.Del(place)
	}
	q.Set("format", format)
	return pageURL(path, q)
}
