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
	// Not every system has it: then the peak is that of the whole run.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// peakMiB is the most resident memory that this process has had, 0 where the
// system does not tell.
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

// cpuTime is what this process has computed so far, in steps of 10 ms; 0 where
// the system does not tell.
func cpuTime() time.Duration {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	_, afterName, _ := strings.Cut(string(stat), ") ") // the 3rd field follows
	fields := strings.Fields(afterName)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64) // the 14th and 15th, in hundredths of a second
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// deadTuples is how many row versions were left behind in the database: each
// update and delete leaves one. The server's own count of dead rows would miss
// those that vacuum, or the next visitor of the page, has removed meanwhile.
// Nobody may use the pool any more: a backend tells its numbers when it ends.
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
	err = conn.QueryRow(ctx, `SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables`).Scan(&dead)
	return dead, err
}
