package fingerprint

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestWhatChangesIsLeftOut(t *testing.T) {
	for name, c := range map[string]struct{ a, b, want string }{
		"numbers":              {"order 7 has 12 items", "order 8001 has 3 items", "order # has # items"},
		"ids":                  {"job 0192f3a4-7b6c-7def-8123-456789abcdef is gone", "job ffffffff-ffff-7fff-8fff-ffffffffffff is gone", "job # is gone"},
		"long ids":             {"no charge ch_3NqLQ2eZvKYlo2C", "no charge ch_1AaBbCcDdEeFfGg", "no charge #"},
		"hex":                  {"commit a1b2c3d", "commit 0123456", "commit #"},
		"pointers":             {"at 0xc00012ab10", "at 0xff", "at #"},
		"addresses":            {"dial tcp 10.0.0.1:5432: connect: connection refused", "dial tcp 192.168.17.4:80: connect: connection refused", "dial tcp #: connect: connection refused"},
		"addresses, version 6": {"dial [fe80::1]:80", "dial [2001:db8::ff00:42]:8080", "dial [#]:#"},
		"times":                {"at 2026-11-21T10:37:55Z", "at 2027-01-02T03:04:05Z", "at #T#Z"},
		"durations":            {"took 1.5s", "took 200s", "took #s"},
		"lists":                {"ids 1, 2, 3", "ids 4,5", "ids #"},
		"quoted":               {`no user "ada"`, `no user "bob \"the\" b."`, `no user ""`},
		"single quotes":        {`can't open 'a b'`, `can't open 'c'`, `can't open ''`},
		"back quotes":          {"table `a`", "table `b`", "table ``"},
		"space":                {"line one\n\tline two ", " line one line two", "line one line two"},
	} {
		for _, message := range []string{c.a, c.b} {
			if got := normalise(message); got != c.want {
				t.Errorf("%s: %q becomes %q, want %q", name, message, got, c.want)
			}
		}
	}
}

func TestWhatMattersIsKept(t *testing.T) {
	for _, c := range [][2]string{
		{"x509: certificate has expired", "http2: certificate has expired"},
		{"connection refused", "connection reset by peer"},
		{"don't know Ada's mail", "don't know Bob's mail"},
	} {
		if Of("mail", "error", c[0]) == Of("mail", "error", c[1]) {
			t.Errorf("%q and %q have one fingerprint", c[0], c[1])
		}
	}
	one := Of("mail", "smtp", "mailbox full")
	for _, other := range []string{Of("bill", "smtp", "mailbox full"), Of("mail", "http", "mailbox full"), Of("mail", "smtp", "mailbox empty"), Of("mail\nsmtp", "", "mailbox full")} {
		if one == other {
			t.Error("another kind, code or message has the same fingerprint")
		}
	}
	if len(one) != 16 || one != Of("mail", "smtp", "mailbox full") {
		t.Errorf("the fingerprint is %q, want the same 16 hex digits each time", one)
	}
}

func FuzzNormalise(f *testing.F) {
	for _, s := range []string{
		"", "plain", `a '5b'7 c`, `'1'1'1'`, `"\"`, `"a\`, "#5#", "1,, 2", "0x", "_1_", "a_b_1", "\xff1\x00", "‘1’", "é12é", "`'`\"'",
		strings.Repeat("1 ", 5000), strings.Repeat(`"`, 5000), "0192f3a4-7b6c-7def-8123-456789abcdef-1", "..#..#", "1, , 2",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, message string) {
		once := normalise(message)
		if len(once) > len(message) || len(once) > maxBytes {
			t.Errorf("%d bytes became %d", len(message), len(once))
		}
		if again := normalise(once); again != once {
			t.Errorf("%q becomes %q, and that becomes %q", message, once, again)
		}
		if !utf8.ValidString(once) || strings.ContainsAny(once, "0123456789\n") {
			t.Errorf("%q becomes %q", message, once)
		}
	})
}
