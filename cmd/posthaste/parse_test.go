package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const century = 100 * 365 * 24 * time.Hour

func TestADurationThatOverflowsIsRefused(t *testing.T) {
	for _, text := range []string{"213504d", "213505d", "999999d", "106752d", "106751d2562047h", "1d9223372036854775807ns"} {
		if got, err := parseDuration(text, 0, century); err == nil {
			t.Errorf("%s is read as %s", text, got)
		}
	}
}

// A duration is within its bounds, as long as the text says in days, and the same
// when it is written as we write it.
func FuzzDuration(f *testing.F) {
	for _, seed := range []string{"30s", "14d", "1d12h", "0s", "", "5", "-1s", "1d-1h", "106751d", "213505d", "999999d", "9999999d", "1d106751d", "1µs", "1.5h", ".5d", "1d ", "+1h", "2562047h47m16.854775807s", "36500d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseDuration(text, 0, century)
		if err != nil {
			return
		}
		var whole float64
		rest := text
		if days, hours, found := strings.Cut(text, "d"); found {
			if _, err := fmt.Sscan(days, &whole); err != nil {
				t.Fatalf("%q is read as %s", text, d)
			}
			rest = hours
		}
		more, _ := time.ParseDuration(rest)
		if said := whole*24 + more.Hours(); d < 0 || d > century || said < d.Hours()*0.999999 || said > d.Hours()*1.000001 {
			t.Errorf("%q is read as %s, and says %f hours", text, d, said)
		}
		if again, err := parseDuration(short(d), 0, century); err != nil || again != d {
			t.Errorf("%q is read as %s, which is written %q and read as %s, %v", text, d, short(d), again, err)
		}
	})
}

// A list of queues has each of its queues once, with the number beside it.
func FuzzQueues(f *testing.F) {
	for _, seed := range []string{"default=64,mail=8", "default", " a = 1", "a,a", "a=0", "a=+1", "a=100001", "a=1=2", ",", "", "a b", "A:9/x.y=007"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		queues, err := parseQueues(text)
		if err != nil {
			return
		}
		var written []string
		for name, config := range queues {
			if config.Concurrency == 0 {
				written = append(written, name)
			} else {
				written = append(written, fmt.Sprintf("%s=%d", name, config.Concurrency))
			}
			if !isName(name) || config.Concurrency < 0 || config.Concurrency > 100_000 {
				t.Errorf("%q is read as %+v", text, queues)
			}
		}
		again, err := parseQueues(strings.Join(written, ","))
		if err != nil || !maps.Equal(queues, again) || len(queues) != strings.Count(text, ",")+1 {
			t.Errorf("%q is read as %+v, and that, written %q, as %+v, %v", text, queues, written, again, err)
		}
	})
}

// Everything that is written of how long to keep counts: no part is overruled by
// another one.
func FuzzKeep(f *testing.F) {
	for _, seed := range []string{
		"30d", "30d,failed=90d,mail:succeeded=1d", "succeeded=2d,30d", "30d,31d", "failed=1d,failed=2d", "mail:failed=1d,mail:failed=2d",
		"a:b:dead=1d", ":dead=1d", "pending=1d", "=1d", "dead=", "dead=23h59m", "succeeded=0", "mail:cancelled=0s,0", "", ",", "36500d", "999999d", " dead = 1d",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		keep, byStatus, byQueue, err := parseKeep(text)
		if err != nil {
			return
		}
		var written []string
		if keep != 0 {
			written = append(written, short(keep))
		}
		note := func(prefix string, keeps map[outbox.Status]time.Duration) {
			for status, d := range keeps {
				if d != 0 && d < 24*time.Hour || d > century {
					t.Errorf("%q keeps %s%s for %s", text, prefix, status, d)
				}
				written = append(written, fmt.Sprintf("%s%s=%s", prefix, status, short(d)))
			}
		}
		note("", byStatus)
		for queue, keeps := range byQueue {
			note(queue+":", keeps)
		}
		if len(written) != strings.Count(text, ",")+1 {
			t.Errorf("%q says no more than %q", text, written)
		}
		keep2, byStatus2, byQueue2, err := parseKeep(strings.Join(written, ","))
		if err != nil || keep != keep2 || !maps.Equal(byStatus, byStatus2) || !maps.EqualFunc(byQueue, byQueue2, maps.Equal[map[outbox.Status]time.Duration, map[outbox.Status]time.Duration]) {
			t.Errorf("%q is written %q, which means something else: %v", text, written, err)
		}
	})
}

// A rate is within its bounds and reads the same when it is written as we write it.
func FuzzRate(f *testing.F) {
	for _, seed := range []string{"100/1m", "100/m", "10/s", "1/d", "0/s", "-1/s", "+1/s", "1/", "1/0s", "1//s", "1/1.5h", "99999999999/s", "1/999999d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rate, err := parseRate(text)
		if err != nil {
			return
		}
		again, err := parseRate(rateText(rate).(string))
		if err != nil || again != rate || rate.Starts < 1 || rate.Starts > operator.MaxRateStarts || rate.Interval < operator.MinRateInterval || rate.Interval > operator.MaxRateInterval {
			t.Errorf("%q is read as %+v, and that as %+v, %v", text, rate, again, err)
		}
	})
}

// A webhook that is accepted leads to a host, by http or https, for a kind that has no
// other; of its URL only that much is shown, and of a list with a mistake nothing.
func FuzzWebhooks(f *testing.F) {
	for _, seed := range []string{
		"greet=https://example.com/x,mail=http://[::1]:8080/?a=b", "greet=https://u:hush@example.com/x#f", "greet=https://u:1/hush@example.com",
		"greet=ftp://u:hush@x", "a=http://x,a=http://y", "a=http://x/%2C,,b=https:///", "a=", "=http://x", "a=http://x\n", "a=http://%zz", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		routes, err := parseWebhooks(text)
		if err != nil {
			if shown := showWebhooks(text); shown != redacted {
				t.Errorf("%q is refused and shown as %q", text, shown)
			}
			return
		}
		var want []string
		kinds := map[string]bool{}
		for _, r := range routes {
			u, err := url.Parse(r.url)
			if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || !isName(r.kind) || kinds[r.kind] || strings.Contains(u.Host, "@") {
				t.Fatalf("%q leads to %+v, %v", text, r, err)
			}
			kinds[r.kind] = true
			want = append(want, r.kind+"="+u.Scheme+"://"+u.Host+"/…")
		}
		if shown := showWebhooks(text); shown != strings.Join(want, ",") {
			t.Errorf("%q is shown as %q, want %q", text, shown, want)
		}
	})
}

// What a provider's names and roles stand for is read completely, and reads the same
// when it is written anew.
func FuzzOIDCSettings(f *testing.F) {
	const id = "01976f0e-0000-7000-8000-000000000001"
	for _, seed := range []string{
		"acme=" + id, "acme=" + id + ",umbrella=" + outbox.RootTenant.String(), "a=" + id + ",a=" + id, "=" + id, "a=00000000-0000-0000-0000-000000000000", "a",
		"operator=admin.read+admin.mutate,client=jobs.enqueue", "a=", "a=jobs.read+", "a=jobs.read,a=jobs.read", "=jobs.read", "a b=jobs.read", "a=jobs.read+jobs.read", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts := strings.Count(text, ",") + 1
		if tenants, err := parseTenants(text); err == nil {
			var written []string
			for name, id := range tenants {
				written = append(written, name+"="+id.String())
				if id.IsZero() || name == "" {
					t.Errorf("%q names the tenant %q %s", text, name, id)
				}
			}
			if again, err := parseTenants(strings.Join(written, ",")); err != nil || !maps.Equal(tenants, again) || len(tenants) != parts {
				t.Errorf("%q is read as %v, and that as %v, %v", text, tenants, again, err)
			}
		}
		if granted, err := parseCapabilities(text); err == nil {
			var written []string
			for value, capabilities := range granted {
				var names []string
				for _, c := range capabilities {
					if _, err := access.ParseCapability(string(c)); err != nil {
						t.Errorf("%q grants %q", text, c)
					}
					names = append(names, string(c))
				}
				written = append(written, value+"="+strings.Join(names, "+"))
			}
			if again, err := parseCapabilities(strings.Join(written, ",")); err != nil || !maps.EqualFunc(granted, again, slices.Equal[[]access.Capability]) || len(granted) != parts {
				t.Errorf("%q is read as %v, and that as %v, %v", text, granted, again, err)
			}
		}
	})
}

// Every setting that takes text refuses it or not; it does neither panic nor tell a
// secret, and what is shown of it is one line.
func FuzzSettings(f *testing.F) {
	for i, s := range slices.Concat(allSettings, apiSettings) {
		f.Add(i, s.fallback)
		f.Add(i, "\x00\xff\n")
	}
	// api-schemas reads files.
	all := slices.DeleteFunc(slices.Concat(allSettings, apiSettings), func(s setting) bool { return s.flag == "api-schemas" })
	f.Fuzz(func(t *testing.T, which int, text string) {
		s := all[uint(which)%uint(len(all))]
		var one, other settings
		err := s.parse(&one, text)
		if again := s.parse(&other, text); (err == nil) != (again == nil) || err != nil && err.Error() == "" {
			t.Errorf("--%s %q: %v, then %v", s.flag, text, err, again)
		}
		if err == nil && s.show != nil && text != "" && strings.ContainsAny(s.show(text), "\n\r\x00") {
			t.Errorf("--%s %q is shown as %q", s.flag, text, s.show(text))
		}
	})
}

// Wherever a password is in a connection string, it is not shown, written as it should
// be or not.
func FuzzShowDSN(f *testing.F) {
	for _, seed := range [][4]string{
		{"ada", "pw", "db:5433", "shop"},
		{"ada", "p@ss/w?rd#1:", "db", "shop"},
		{"ada", "1/", "db", "shop"},
		{"ada", "1?x=", "db", "shop"},
		{"ada", "1#", "db", "shop"},
		{"a'd\\a", "it's \\ here", "/run/pg", "a b"},
		{"ada", "%zz", "[::1]:5432", "shop"},
		{"ada", "\x00\n", "a,b", ""},
		{"", " ", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	kv := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	f.Fuzz(func(t *testing.T, user, password, host, database string) {
		if strings.Contains(user+host+database, "hush") {
			return
		}
		secret := password + "hush"
		for name, dsn := range map[string]string{
			"a URL":               (&url.URL{Scheme: "postgres", User: url.UserPassword(user, secret), Host: host, Path: "/" + database}).String(),
			"a URL, not escaped":  "postgres://ada:" + secret + "@db/shop",
			"its query":           "postgresql://db/shop?password=" + url.QueryEscape(secret) + "&user=" + url.QueryEscape(user),
			"its query, by SSL":   "postgres://db/shop?sslmode=disable&sslpassword=" + url.QueryEscape(secret),
			"keywords and values": "host='" + kv.Replace(host) + "' password='" + kv.Replace(secret) + "' user='" + kv.Replace(user) + "' dbname='" + kv.Replace(database) + "'",
		} {
			if shown := showDSN(dsn); strings.Contains(shown, "hush") {
				t.Errorf("%s: %q is shown as %q", name, dsn, shown)
			}
		}
		for _, address := range []string{"https://ada:" + secret + "@db/x", "https://db/x?" + secret, "https://db/#" + secret} {
			if shown := showAPI(address); strings.Contains(shown, "hush") {
				t.Errorf("%q is shown as %q", address, shown)
			}
			if shown := showURL(address); strings.Contains(shown, "hush") {
				t.Errorf("the webhook %q is shown as %q", address, shown)
			}
		}
	})
}

// A listing has every value: machines read it back from JSON, spreadsheets read it from
// CSV without finding a formula, and for people it keeps to its lines, whatever somebody
// wrote into an error or a key.
func FuzzListing(f *testing.F) {
	for _, seed := range [][3]string{
		{"a", "b", "c"}, {"", "", ""}, {"x\x1b[2J\ny", "\"quoted\", and more", "\r\n"}, {"=1+1", "\x9b31m", "\u009b31m"}, {`\.`, " a ", "\xff"}, {"\u2028", "\t", "\x00"}, {"#", "'", `"`},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		l := listing{header: []string{"one", "two"}}
		l.add(a, b)
		l.add(c, 7)
		var inJSON, inCSV, table strings.Builder
		if err := l.json(&inJSON); err != nil {
			t.Fatal(err)
		}
		var objects []map[string]any
		valid := func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
		if err := json.Unmarshal([]byte(inJSON.String()), &objects); err != nil || len(objects) != 2 || !sameText(objects[0]["one"], a) || !sameText(objects[0]["two"], b) || !sameText(objects[1]["one"], c) {
			t.Errorf("%q, %q, %q in JSON: %s (%v)", a, b, valid(c), inJSON.String(), err)
		}
		if err := l.csv(&inCSV); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(strings.NewReader(inCSV.String())).ReadAll()
		if err != nil || !slices.EqualFunc(rows, [][]string{{"one", "two"}, {forSpreadsheets(a), forSpreadsheets(b)}, {forSpreadsheets(c), "7"}}, slices.Equal[[]string]) {
			t.Errorf("%q, %q, %q in CSV: %q (%v)", a, b, c, inCSV.String(), err)
		}
		if strings.ContainsFunc(inCSV.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) ||
			slices.ContainsFunc(rows, func(row []string) bool { return slices.ContainsFunc(row, isFormula) }) {
			t.Errorf("%q, %q, %q in CSV moves a cursor or is a formula: %q", a, b, c, inCSV.String())
		}
		if err := l.table(&table); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSuffix(table.String(), "\n")
		if strings.Count(text, "\n") != 2 || strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }) {
			t.Errorf("%q, %q, %q as a table: %q", a, b, c, table.String())
		}
	})
}

func isFormula(cell string) bool { return cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r") }

// sameText compares what was read from JSON with what was written to it, where each
// byte that is no UTF-8 becomes a replacement character.
func sameText(got any, want string) bool { return got == string([]rune(want)) }

func TestInstants(t *testing.T) {
	t.Parallel()
	midnight := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-11-27": midnight, "2026-11-27T00:00:00Z": midnight, "2026-11-27T01:30:00+01:30": midnight,
		"2026-11": {}, "27.11.2026": {}, "2026-11-27 00:00:00": {}, "2026-11-27T00:00": {}, "2026-02-30": {}, "": {},
		"0001-01-01": {}, "0001-01-01T00:00:00Z": {}, "0001-01-01T01:00:00+01:00": {},
	} {
		got, err := parseInstant(text)
		if !got.Equal(want) || (err == nil) == want.IsZero() {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "or a date like 2027-01-31") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
