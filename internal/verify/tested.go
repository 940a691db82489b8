package verify

import (
	"fmt"
	"slices"
	"strings"
)

// Tested is a row of the scorecard that needs no processes of its own: Go tests check it on every test run. That runs
// the fuzz targets of H1 on their saved inputs; make fuzz runs them on random input.
type Tested struct {
	Name   string // "G1"
	Check  string
	Folder string
	Tests  []string
}

// TestedRows returns the rows that Go tests check, in order.
func TestedRows() []Tested { return slices.Clone(testedRows) }

var testedRows = []Tested{
	{
		"A14", "Postgres hangs, recovers from a crash, or has outbox.jobs locked for longer than the leases: a lease that expires meanwhile uses no attempt and does not count as lost, for the root tenant and another, with and without keys",
		"integration",
		[]string{"TestA14AnOutageOfTwoLeasesSpendsNoAttempt"},
	},
	{
		"E6", "webhook receivers that return every status, redirect, hang, reset the connection, send an endless or a huge body, set Retry-After, or are down: when each request is retried, for how long it can block, and how much of its response is read",
		"relay/webhook",
		[]string{
			"TestE6StatusDecides", "TestE6RedirectsAreNotFollowed", "TestE6AHugeAnswerIsNotRead",
			"TestE6ABodyThatNeverEndsHoldsNobody", "TestE6ARetryAfterIsNoShorterThanThePolicysWait",
			"TestE6SilenceIsNotAlwaysAnOutage", "TestE6TheContextBoundsTheRequest",
			"TestE6NobodyThereIsTriedAgainAndTellsNoSecrets",
		},
	},
	{
		"G1", "every API route × caller × kind of object of another tenant: nothing is shown or changed, and a request for another tenant's object gets the same response, and takes the same queries, as one for an object that does not exist",
		"api",
		[]string{"TestG1NoRouteReachesAnotherTenant", "TestG1AnothersAnswersAndCostsAsNobodys"},
	},
	{
		"G2", "every route declares an existing capability, and is one of the routes of G1", "api",
		[]string{"TestG2EveryRouteDeclaresWhatItTakes"},
	},
	{
		"G3", "row-level security: every table × role × verb × tenant of the transaction, every function, and a connection pool that serves two tenants in turn, including aborted transactions",
		"access",
		[]string{
			"TestG3NoVerbReachesAnotherTenantsRows", "TestG3NoFunctionReachesAnotherTenantsRows",
			"TestG3APoolKeepsTenantsApartThroughReuse",
		},
	},
	{"G4", "a token altered in 150 ways is refused", "api", []string{"TestG4NoChangedTokenGetsIn"}},
	{"G4", "JWTs that are forged, meant for another audience, expired, or signed with a key that the provider does not have are refused by a real server process", "cmd/posthaste", []string{"TestG4ServeTakesTheProvidersJWTsAndNoOthers"}},
	{
		"G5", "every table × role × verb that the catalog does not grant is refused when it is tried", "access",
		[]string{"TestG5WhatIsNotGrantedIsRefused"},
	},
	{
		"G10", "unknown members, values of the wrong type, and numbers that no field can hold, in every request body of the API, and a body where none is expected: refused with the place of the mistake, and nothing changed",
		"api",
		[]string{
			"TestG10NoRouteTakesAMemberTooMany", "TestG10NoRouteTakesAValueOfAnotherType",
			"TestG10NoNumberLosesItsPlace", "TestG10NoRouteWithoutABodyTakesOne",
		},
	},
	{"G12", "every route that changes something writes to the audit who did what to which object, and the request's id; an entry that a superuser edits is detected", "api", []string{"TestG12EveryActLeavesItsRowInTheAudit"}},
	{
		"G12", "the hash chain over the audit: every column edited, entries deleted, swapped or inserted, links changed, the end cut off, the whole chain recomputed: each is detected; trimming and 32 concurrent operators leave the chain intact",
		"operator",
		[]string{
			"TestG12NoColumnOfTheAuditCanBeEdited", "TestG12WhoeverTampersWithTheAuditIsFound",
			"TestG12TrimmingLeavesTheChainWhole", "TestG12ActsAtOnceMakeOneChain",
		},
	},
	{
		"H1", "fuzzing: tokens, JWTs, their claims, key sets and a provider's discovery document", "access",
		[]string{"FuzzJWT", "FuzzClaims", "FuzzKeySet", "FuzzDiscovery", "FuzzParseToken"},
	},
	{
		"H1", "fuzzing: bodies, batches, parameters, cursors, trace contexts and request ids", "api",
		[]string{
			"FuzzBatch", "FuzzParameters", "FuzzRequestID", "FuzzReadCursor", "FuzzOtherCursors", "FuzzCheckJSON",
			"FuzzTraceContext",
		},
	},
	{"H1", "fuzzing: event streams and problem documents", "client", []string{"FuzzEvents", "FuzzProblem"}},
	{
		"H1", "fuzzing: flags, settings, connection strings and listings", "cmd/posthaste",
		[]string{
			"FuzzRate", "FuzzWebhooks", "FuzzOIDCSettings", "FuzzSettings", "FuzzShowDSN", "FuzzListing",
			"FuzzDuration", "FuzzQueues", "FuzzKeep",
		},
	},
	{
		"H1", "fuzzing: ETags, ranges, Retry-After and file names", "handlers/download",
		[]string{"FuzzContentRange", "FuzzValidator", "FuzzRetryAfter", "FuzzPartName"},
	},
	{"H1", "fuzzing: error messages", "internal/fingerprint", []string{"FuzzNormalise"}},
	{"H1", "fuzzing: payloads and their schemas", "kinds", []string{"FuzzCheck"}},
	{"H1", "fuzzing: stream positions", "internal/changefeed", []string{"FuzzParsePosition"}},
	{
		"H1", "fuzzing: payloads, names, options and ids", "outbox",
		[]string{"FuzzRawJSON", "FuzzParseID", "FuzzValidName", "FuzzOptions"},
	},
	{"H1", "fuzzing: statuses", "operator", []string{"FuzzParseStatus"}},
	{
		"H1", "fuzzing: encrypted payloads and references to stored ones", "protect",
		[]string{"FuzzOpen", "FuzzSeal", "FuzzReference"},
	},
	{
		"H1", "fuzzing: targets, headers and responses", "relay/webhook",
		[]string{"FuzzTarget", "FuzzHeaders", "FuzzAnswer"},
	},
	{"H1", "fuzzing: cron expressions and intervals", "schedule", []string{"FuzzCron", "FuzzInterval"}},
	{
		"H2", "unusual text in every path, query and body of the API: refused with a 4xx or stored unchanged, never a 5xx",
		"api",
		[]string{"TestH2OddInputIsRefusedOrTakenAsItIs", "TestH2WhatIsTakenComesBackAsItWas"},
	},
	{
		"H3", "clients that send headers or bodies slowly, read slowly, or send endless headers are disconnected while others are served; 40 clients that send the largest batch without its end cost at most 100 MiB of memory, and p99 of a normal client beside them is at most twice what it is alone, plus 2 s",
		"server",
		[]string{
			"TestH3SlowClientsAreCutOff", "TestH3NoSlowClientIsKeptForHalfAMinute", "TestH3HeadersHaveABound",
			"TestH3SlowBodiesTakeBoundedMemory",
		},
	},
	{"H4", "80 times as many clients as there is capacity for: each gets a 202 or a 429, and every request that got a 202 is stored", "api", []string{"TestH4AnOverloadGets429sAndNoTimeouts"}},
	{
		"H4", "100 clients for each request in progress: p99 of accepted requests is at most three times what it is alone, plus 2 s; 40 callers that send batches of 8 MiB one after another cost at most 384 MiB of memory",
		"server",
		[]string{"TestH4WhatIsTakenInAnOverloadIsAnsweredAsEver", "TestH4AnOverloadOfBatchesTakesBoundedMemory"},
	},
}

// listTested writes the tested rows as a table.
func listTested(b *strings.Builder) {
	b.WriteString("\n### Go tests\n\nThese rows need no processes of their own: Go tests check them with every change.\n\n| row | what is checked | tests |\n| --- | --- | --- |\n")
	for _, row := range TestedRows() {
		fmt.Fprintf(b, "| %s | %s | `%s`: %s |\n", row.Name, cell(row.Check), row.Folder, strings.Join(row.Tests, ", "))
	}
}
