package console

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// mostExported is how many rows of a list are exported.
const mostExported = 10_000

// exportParams are what a list takes, and the format: csv or jsonl.
const exportParams = " format"

// exportedTable is a list that is written as it is read, a page at a time.
type exportedTable struct {
	name    string // of the file
	columns []string
	rows    iter.Seq2[[]string, error] // each has a value for each column
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
	columns := []string{"id", "tenant", "status", "kind", "queue", "created_at", "run_at", "started_at", "finished_at", "error"}
	if v.can(access.AdminRead) {
		columns = append(columns, "attempt", "max_attempts")
	}
	return v.export(exportedTable{"jobs", columns, func(yield func([]string, error) bool) {
		for {
			page, err := v.operator.Page(v.ctx(), f)
			for _, j := range page.Jobs {
				if !yield(v.jobCells(j), nil) {
					return
				}
			}
			if f.Before = page.Next; err != nil {
				yield(nil, err)
			}
			if err != nil || f.Before.IsZero() {
				return
			}
		}
	}})
}

func (v *visit) jobCells(j operator.Job) []string {
	cells := []string{
		j.ID.String(), j.Tenant.String(), string(j.Status), j.Kind, j.Queue, exported(j.CreatedAt), exported(j.RunAt), exported(j.StartedAt),
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
	columns := []string{"id", "tenant", "status", "kind", "queue", "key", "created_at", "failed_at", "attempt", "error_code", "error_message", "fingerprint"}
	return v.export(exportedTable{"dead-letters", columns, func(yield func([]string, error) bool) {
		var before outbox.ID
		for {
			letters, err := v.operator.DeadLetters(v.ctx(), f, before, operator.MaxLimit)
			for _, l := range letters {
				before = l.ID
				cells := []string{
					l.ID.String(), l.Tenant.String(), string(l.Status), l.Kind, l.Queue, l.Key, exported(l.CreatedAt), exported(l.FailedAt),
					strconv.Itoa(l.Attempt), l.ErrorCode, l.ErrorMessage, l.Fingerprint,
				}
				if !yield(cells, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
			if err != nil || len(letters) < operator.MaxLimit {
				return
			}
		}
	}})
}

func (s *site) exportAudit(v *visit) error {
	f, err := v.auditFilter()
	if err != nil {
		return err
	}
	f.Limit, f.Before = operator.MaxLimit, 0
	columns := []string{"id", "at", "actor", "act", "tenant", "job", "queue", "target", "changes", "reason", "request"}
	return v.export(exportedTable{"audit", columns, func(yield func([]string, error) bool) {
		for {
			entries, err := v.operator.Audit(v.ctx(), f)
			for _, e := range entries {
				f.Before = e.ID
				cells := []string{
					strconv.FormatInt(e.ID, 10), exported(e.At), e.Actor, e.Act, exportedID(e.Tenant), exportedID(e.JobID), e.Queue, e.Target,
					strings.Join(v.changes(e), ", "), e.Reason, e.RequestID,
				}
				if !yield(cells, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
			}
			if err != nil || len(entries) < operator.MaxLimit {
				return
			}
		}
	}})
}

// exported is a time in a file; "" for none.
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

// export answers with a file of up to mostExported rows, written as they are read. If reading fails once the answer has
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
	next, stop := iter.Pull2(t.rows)
	defer stop()
	row, err, more := next()
	if err != nil {
		return err
	}
	h := v.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Disposition", "attachment; filename="+t.name+"-"+v.now.UTC().Format("20060102-150405")+"."+ending)
	// Not every writer has a deadline.
	_ = http.NewResponseController(v.w).SetWriteDeadline(time.Now().Add(v.site.config.Timeout))
	v.w.WriteHeader(http.StatusOK)
	if v.r.Method == http.MethodHead {
		return nil
	}
	if ending == "csv" {
		err = writeCSV(v.w, nil, t.columns)
	}
	for n := 0; err == nil && more && n < mostExported; n++ {
		if err = write(v.w, t.columns, row); err == nil {
			row, err, more = next()
		}
	}
	if err != nil {
		v.site.log.LogAttrs(v.ctx(), slog.LevelWarn, "export was cut off", slog.String("request_id", v.id), slog.Any("err", err))
		panic(http.ErrAbortHandler)
	}
	return nil
}

// inner is what is a formula within a cell for a spreadsheet that splits lines at semicolons or tabs, as those do whose
// language writes decimals with a comma: to it the quotation marks around the cell are none, and a line end is one.
var inner = regexp.MustCompile(`([;\t\r\n])([" ]*[=+\-@＝＋－＠])`)

// writeCSV writes a line. What a spreadsheet would take for a formula begins with an apostrophe.
func writeCSV(w io.Writer, _, cells []string) error {
	harmless := make([]string, len(cells))
	for i, cell := range cells {
		if harmless[i] = cell; cell != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", []rune(cell)[0]) {
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

// writeJSON writes a line: an object with its members in the order of the columns, all of them texts.
func writeJSON(w io.Writer, columns, cells []string) error {
	var line bytes.Buffer
	for i, cell := range cells {
		name, _ := json.Marshal(columns[i])
		text, err := json.Marshal(cell)
		if err != nil {
			return err
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

// exportLink is the file of this page's list, from its beginning.
func (v *visit) exportLink(path, format string) templ.SafeURL {
	q := v.lasting()
	for _, place := range []string{"before", "limit", "q"} {
		q.Del(place)
	}
	q.Set("format", format)
	return pageURL(path, q)
}
