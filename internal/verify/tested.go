package verify

import (
	"fmt"
	"slices"
	"strings"
)

// Tested is a row of the scorecard that needs no processes of its own: Go tests
// check it whenever the tests are run. The targets of H1 are run on what they have kept
// then, and on random input by make fuzz.
type Tested struct {
	Name   string // "G1"
	Check  string
	Folder string
	Tests  []string
}

// TestedRows are those rows, in their order.
func TestedRows() []Tested { return slices.Clone(testedRows) }

var testedRows = []Tested{
	{
		"A13", "Postgres stands still, recovers from a crash, or has the table locked for longer than the leases: what lapses spends no attempt and counts as no lost lease, root's and a tenant's, with a key and without",
		"integration",
		[]string{"TestA13AnOutageOfTwoLeasesSpendsNoAttempt"},
	},
	{
		"E6", "receivers of webhooks that answer every status, redirect, hang, reset, send without end or in one flood, ask for a wait, or are not there: when each is tried again, how long it holds anybody, and what of its answer is read",
		"relay/webhook",
		[]string{"TestE6StatusDecides", "TestE6RedirectsAreNotFollowed", "TestE6AHugeAnswerIsNotRead", "TestE6ABodyThatNeverEndsHoldsNobody", "TestE6ARetryAfterIsNoShorterThanThePolicysWait", "TestE6SilenceIsNotAlwaysAnOutage", "TestE6TheContextBoundsTheRequest", "TestE6NobodyThereIsTriedAgainAndTellsNoSecrets"},
	},
	{
		"G1", "every route of the API × who asks × every thing of another tenant: nothing is shown, nothing changes, and what is another's answers and costs what nobody's does",
		"api",
		[]string{"TestG1NoRouteReachesAnotherTenant", "TestG1AnothersAnswersAndCostsAsNobodys"},
	},
	{"G2", "every route declares a capability that exists, and is in the matrix of G1", "api", []string{"TestG2EveryRouteDeclaresWhatItTakes"}},
	{
		"G3", "row security: every table × role × verb × tenant of the transaction, every function, and a pool that serves two tenants in turns, aborted transactions among them",
		"access",
		[]string{"TestG3NoVerbReachesAnotherTenantsRows", "TestG3NoFunctionReachesAnotherTenantsRows", "TestG3APoolKeepsTenantsApartThroughReuse"},
	},
	{"G4", "a token changed in 150 ways", "api", []string{"TestG4NoChangedTokenGetsIn"}},
	{"G4", "JWTs that are forged, misdirected, expired, or of a key that the provider has not, through the real process", "cmd/posthaste", []string{"TestG4ServeTakesTheProvidersJWTsAndNoOthers"}},
	{"G5", "what the catalog does not grant to a role is refused when it is tried: every table × role × verb", "access", []string{"TestG5WhatIsNotGrantedIsRefused"}},
	{
		"G10", "members that no route has, values of other types, and numbers that no field holds, in every body of the API, and a body where none is taken: refused by their place, nothing changed",
		"api",
		[]string{"TestG10NoRouteTakesAMemberTooMany", "TestG10NoRouteTakesAValueOfAnotherType", "TestG10NoNumberLosesItsPlace", "TestG10NoRouteWithoutABodyTakesOne"},
	},
	{"G12", "every route that acts leaves who did what to what, and the request's id, in the audit; an act edited by a superuser is found", "api", []string{"TestG12EveryActLeavesItsRowInTheAudit"}},
	{
		"G12", "the chain over the audit: every column edited, acts deleted, exchanged, slipped in, links changed, the end cut off, all made anew: each is found; trimming and 32 operators at once leave it whole",
		"operator",
		[]string{"TestG12NoColumnOfTheAuditCanBeEdited", "TestG12WhoeverTampersWithTheAuditIsFound", "TestG12TrimmingLeavesTheChainWhole", "TestG12ActsAtOnceMakeOneChain"},
	},
	{"H1", "random input: tokens, JWTs, their claims, keys and a provider's description", "access", []string{"FuzzJWT", "FuzzClaims", "FuzzKeySet", "FuzzDiscovery", "FuzzParseToken"}},
	{"H1", "random input: bodies, batches, parameters, cursors, trace contexts and request ids", "api", []string{"FuzzBatch", "FuzzParameters", "FuzzRequestID", "FuzzReadCursor", "FuzzOtherCursors", "FuzzCheckJSON", "FuzzTraceContext"}},
	{"H1", "random input: event streams and problems", "client", []string{"FuzzEvents", "FuzzProblem"}},
	{"H1", "random input: flags, settings, connection strings and listings", "cmd/posthaste", []string{"FuzzRate", "FuzzWebhooks", "FuzzOIDCSettings", "FuzzSettings", "FuzzShowDSN", "FuzzListing", "FuzzDuration", "FuzzQueues", "FuzzKeep"}},
	{"H1", "random input: validators, ranges, times to wait and names of files", "handlers/download", []string{"FuzzContentRange", "FuzzValidator", "FuzzRetryAfter", "FuzzPartName"}},
	{"H1", "random input: error messages", "internal/fingerprint", []string{"FuzzNormalise"}},
	{"H1", "random input: payloads against their schemas", "kinds", []string{"FuzzCheck"}},
	{"H1", "random input: positions of streams", "internal/changefeed", []string{"FuzzParsePosition"}},
	{"H1", "random input: payloads, names, options and ids", "outbox", []string{"FuzzRawJSON", "FuzzParseID", "FuzzValidName", "FuzzOptions"}},
	{"H1", "random input: statuses", "operator", []string{"FuzzParseStatus"}},
	{"H1", "random input: sealed payloads and references to stored ones", "protect", []string{"FuzzOpen", "FuzzSeal", "FuzzReference"}},
	{"H1", "random input: targets, headers and answers", "relay/webhook", []string{"FuzzTarget", "FuzzHeaders", "FuzzAnswer"}},
	{"H1", "random input: cron expressions and intervals", "schedule", []string{"FuzzCron", "FuzzInterval"}},
	{
		"H2", "odd text in every path, query and body of the API: a 4xx, or taken as it is; never a 5xx",
		"api",
		[]string{"TestH2OddInputIsRefusedOrTakenAsItIs", "TestH2WhatIsTakenComesBackAsItWas"},
	},
	{
		"H3", "slow headers, bodies and readers, and headers without end: cut off, while others are served; 40 senders of the largest batch, but for its end: 64 MiB more memory at most, and p99 of an honest client beside them at most twice what it is alone (and 250 ms)",
		"server",
		[]string{"TestH3SlowClientsAreCutOff", "TestH3NoSlowClientIsKeptForHalfAMinute", "TestH3HeadersHaveABound", "TestH3SlowBodiesTakeBoundedMemory"},
	},
	{"H4", "80 times as many clients as there is room for: each gets a 202 or a 429, and what got a 202 is stored", "api", []string{"TestH4AnOverloadGets429sAndNoTimeouts"}},
	{
		"H4", "100 clients for each request that is worked on: p99 of what is taken at most three times what it is alone (and 250 ms); 40 callers who send one batch of 8 MiB after the other: 256 MiB more memory at most",
		"server",
		[]string{"TestH4WhatIsTakenInAnOverloadIsAnsweredAsEver", "TestH4AnOverloadOfBatchesTakesBoundedMemory"},
	},
}

// listTested writes them as a table.
func listTested(b *strings.Builder) {
	b.WriteString("\nRows that need no processes of their own are Go tests, run with every change:\n\n| row | what is checked | tests |\n| --- | --- | --- |\n")
	for _, row := range TestedRows() {
		fmt.Fprintf(b, "| %s | %s | `%s`: %s |\n", row.Name, cell(row.Check), row.Folder, strings.Join(row.Tests, ", "))
	}
}
