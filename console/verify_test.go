package console_test

import (
	"net/url"
	"regexp"
	"testing"
)

var headOf = regexp.MustCompile(`\d+:[0-9a-f]{64}`)

func TestTheAuditIsVerified(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.audit (actor, act) SELECT 'ada', 'x.y' FROM generate_series(1, 5)`)
	head := headOf.FindString(r.get("audit-verify").is(200).has("The audit is as it was recorded", "Acts as recorded 5", "Read to the end").text())
	against := "audit-verify?head=" + url.QueryEscape(head)
	r.get(against).is(200).has("The audit is as it was recorded")
	r.get("audit").has("Verify")
	for name, tampering := range map[string]string{
		"changed":        `ALTER TABLE outbox.audit DISABLE TRIGGER USER; UPDATE outbox.audit SET actor = 'zoe' WHERE id = 2; ALTER TABLE outbox.audit ENABLE TRIGGER USER`,
		"inserted later": `ALTER TABLE outbox.audit DISABLE TRIGGER USER; INSERT INTO outbox.audit (actor, act) VALUES ('zoe', 'x.y'); ALTER TABLE outbox.audit ENABLE TRIGGER USER`,
	} {
		r.exec(tampering)
		r.get("audit-verify").is(200).has("The audit is not what was recorded", name)
	}
	r.as("a").get("audit-verify").is(403)
	r.as("all+jobs.read").get("audit-verify").is(403)
	r.get("audit-verify?head=x").is(400)
}
