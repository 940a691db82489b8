package bench

import (
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// forgetPeak makes peakMiB count from now on.
func forgetPeak() {
	debug.FreeOSMemory()
	// Not every system has this file: without it, the peak is that of the whole run.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// peakMiB returns the largest resident memory that this process has had, 0 if the system does not report it.
func peakMiB() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024
		}
	}
	return 0
}

// cpuTime returns the processor time of this process so far, in steps of 10 ms; 0 if the system does not report it.
func cpuTime() time.Duration { return processTime("self", 14) }

// processTime returns the sum of two adjacent fields of a process's line in /proc, which are in hundredths of a second.
func processTime(process string, first int) time.Duration {
	fields := processFields(process)
	if len(fields) <= first-2 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[first-3], 10, 64)
	system, _ := strconv.ParseInt(fields[first-2], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// processFields returns the fields of a process's line in /proc, from the 3rd on.
func processFields(process string) []string {
	stat, err := os.ReadFile("/proc/" + process + "/stat")
	if err != nil {
		return nil
	}
	_, afterName, _ := strings.Cut(string(stat), ") ")
	return strings.Fields(afterName)
}

// serverTime returns the processor time of the server's sessions that have ended; 0 if the system does not report it,
// or the server is on another machine.
func (r *rig) serverTime(ctx context.Context) (time.Duration, error) {
	time.Sleep(200 * time.Millisecond) // until sessions that were just closed have ended
	var pid int
	if err := r.pool.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return 0, err
	}
	fields := processFields(strconv.Itoa(pid))
	if len(fields) < 2 {
		return 0, nil
	}
	return processTime(fields[1], 16), nil // the children of the session's parent that have ended
}

// computed returns the processor time of this process and the server so far; 0 if the system does not report it, or the
// server is on another machine.
func (r *rig) computed(ctx context.Context) (time.Duration, error) {
	var pid int
	if err := r.pool.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return 0, err
	}
	fields := processFields(strconv.Itoa(pid))
	if len(fields) < 2 {
		return 0, nil
	}
	sum, parent := cpuTime()+processTime(fields[1], 16), fields[1]
	processes, err := os.ReadDir("/proc")
	for _, p := range processes {
		if of := processFields(p.Name()); len(of) > 1 && of[1] == parent {
			sum += processTime(p.Name(), 14)
		}
	}
	return sum, err
}

// deadTuples returns how many dead row versions were made in the database: each update and delete makes one. The
// server's own count of dead rows would miss those that vacuum, or the next visitor of the page, has removed meanwhile.
// The pool must not be in use any more: a backend reports its numbers when it ends.
func (r *rig) deadTuples(ctx context.Context) (float64, error) {
	r.pool.Reset()
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for busy := true; busy; time.Sleep(10 * time.Millisecond) {
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND pid <> pg_backend_pid())`).Scan(&busy)
		if err != nil {
			return 0, err
		}
	}
	var dead float64
	err = conn.QueryRow(ctx, `SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables`).Scan(
		&dead)
	return dead, err
}
