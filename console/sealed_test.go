package console_test

import (
	"regexp"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

var sealedAs = regexp.MustCompile(`Sealed as `)

// What a protector has sealed is called that, and is not shown: neither a payload nor a result.
func TestWhatIsSealedIsNotShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const kind = protect.SealedPrefix + "test"
	id := r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`UPDATE outbox.jobs SET content_type = $2, payload = 'cipherpayload', status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w',
		lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id, kind)
	r.exec(`WITH gone AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, finished_at, closed_from, lost_leases, result)
		SELECT id, tenant_id, queue, kind, 'succeeded', payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, now(), status, 0, $2 FROM gone`,
		id, engine.Frame(kind, []byte("cipherresult")))
	for _, page := range []string{"job?id=", "job?whole=1&reveal=1&id="} {
		a := r.as("a").get(page + id.String()).is(200)
		if n := len(sealedAs.FindAllString(a.text(), -1)); n != 2 {
			t.Errorf("%s: %d parts are called sealed, want the payload and the result", page, n)
		}
		a.hasNot("cipherpayload", "cipherresult")
	}
}
