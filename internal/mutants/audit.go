package mutants

const (
	tampered = "An act that was tampered with is found"
)

var chained = []Mutant{
	{
		Name:      "a chain without its lock",
		Breaks:    "of two acts that commit at once one fails",
		Invariant: tampered,
		Edits:     []Edit{{"migrations.outbox.chain_audit", `    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.audit_chain', 0));`, ``}},
		Checks: []Check{
			test("operator", "TestALinkWaitsForTheOneBeforeIt", "the second act failed"),
			test("operator", "TestG12ActsAtOnceMakeOneChain", "was taken meanwhile"),
		},
	},
	{
		Name:      "the last link as it was before the lock",
		Breaks:    "an act that waited for another one fails",
		Invariant: tampered,
		Edits: []Edit{{"migrations.outbox.chain_audit", `    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.audit_chain', 0));
    SELECT * INTO last FROM outbox.audit_chain ORDER BY seq DESC LIMIT 1;`, `    SELECT head.* INTO last
    FROM (SELECT pg_advisory_xact_lock(hashtextextended('outbox.audit_chain', 0)) IS NULL OFFSET 0) AS locked,
         LATERAL (SELECT * FROM outbox.audit_chain ORDER BY seq DESC LIMIT 1) AS head;`}},
		Checks: []Check{test("operator", "TestALinkWaitsForTheOneBeforeIt", "the second act failed")},
	},
	{
		Name:      "a hash without the reason",
		Breaks:    "why something was done can be edited afterwards",
		Invariant: tampered,
		Edits: []Edit{
			{"migrations.outbox.audit_hash", `    entry.reason, entry.request_id)::text`, `    entry.request_id)::text`},
			{"internal/sqlgen.ReadAuditChain", `               audit.reason, audit.request_id) END`, `               audit.request_id) END`},
		},
		Checks: []Check{test("operator", "TestG12NoColumnOfTheAuditCanBeEdited", "reason of act 2 became")},
	},
	{
		Name:      "acts without a link are not looked for",
		Breaks:    "an act that never was is slipped in",
		Invariant: tampered,
		Edits:     []Edit{{"operator.Operator.findUnchained", `range found.Unchained {`, `range found.Unchained[:0] {`}},
		Checks:    []Check{test("operator", "TestG12WhoeverTampersWithTheAuditIsFound/an_act_is_slipped_in", "it was inserted later")},
	},
	{
		Name:      "a noted head is any link of its number",
		Breaks:    "an act is edited and the chain made anew, and nobody sees it",
		Invariant: tampered,
		Edits:     []Edit{{"operator.chainReader.step", `if w.check.Head != w.noted {`, `if w.check.Head.Seq != w.noted.Seq {`}},
		Checks:    []Check{test("operator", "TestG12WhoeverTampersWithTheAuditIsFound/an_edit,_and_a_new_chain", "not the one that was noted")},
	},
	{
		Name:      "an anchor anywhere",
		Breaks:    "an act is removed and its link made to look like the beginning",
		Invariant: tampered,
		Edits:     []Edit{{"internal/sqlgen.ReadAuditChain", `chain.audit_id IS NULL AND NOT EXISTS (SELECT FROM outbox.audit_chain AS earlier WHERE earlier.seq < chain.seq)`, `chain.audit_id IS NULL`}},
		Checks:    []Check{test("operator", "TestG12WhoeverTampersWithTheAuditIsFound/made_to_look_like_an_anchor", "the act is gone")},
	},
	{
		Name:      "how long acts are kept is compared as an interval",
		Breaks:    "whoever may trim the audit trims all of it, with months and days of different signs",
		Invariant: tampered,
		Edits: []Edit{{
			"migrations.outbox.trim_audit", `(now() - keep <= now() - interval '30 days') IS NOT TRUE`,
			`(keep >= interval '30 days') IS NOT TRUE`,
		}},
		Checks: []Check{test("operator", "TestNobodyTrimsWhatIsYoung", "want it refused")},
	},
	{
		Name:      "whatever is old is trimmed",
		Breaks:    "a younger act between old ones loses its link",
		Invariant: tampered,
		Edits:     []Edit{{"migrations.outbox.trim_audit", `bool_and(oldest.at < now() - keep) OVER (ORDER BY oldest.seq) AS is_old`, `oldest.at < now() - keep AS is_old`}},
		Checks:    []Check{test("operator", "TestG12TrimmingLeavesTheChainWhole", "want the act of the third link")},
	},
}
