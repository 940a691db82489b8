package foreign

import (
	"strings"
	"testing"
)

func TestDatabase(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit": "",
		"PostgreSQL 16.4 on aarch64-unknown-linux-gnu, compiled by gcc (GCC) 7.3.1, 64-bit":                                   "",
		"CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15 21:28:29, go1.22.2)":                                  "CockroachDB",
		"PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 15.0.3, 64-bit":                     "YugabyteDB",
		"PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2, Redshift 1.0.28965":                          "Redshift",
		"Something 1.0": "Something 1.0",
		"":              "a server that does not report its version",
	} {
		if got := Database(version); got != want {
			t.Errorf("Database(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"PostgreSQL 14.13 (Debian 14.13-1) on x86_64-pc-linux-gnu": "PostgreSQL 14, and the oldest",
		"PostgreSQL 9.6.24 on x86_64-pc-linux-gnu":                 "PostgreSQL 9, and the oldest",
		"PostgreSQL 15.0 on x86_64-pc-linux-gnu":                   "",
		"PostgreSQL 15beta1 on x86_64-pc-linux-gnu":                "",
		"PostgreSQL 18.1 (EnterpriseDB Advanced Server 18.1.0)":    "",
		"PostgreSQL 19devel on x86_64-pc-linux-gnu":                "",
		"PostgreSQL of a provider":                                 "",
		"PostgreSQL 11.2-YB-2.20.1.0-b0":                           "YugabyteDB",
		"CockroachDB CCL v24.1.0":                                  "CockroachDB",
	} {
		if got := Refusal(version); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("Refusal(%q) = %q, want %q", version, got, want)
		}
	}
	if got := Major("PostgreSQL 19devel on x86_64-pc-linux-gnu"); got != 19 {
		t.Errorf("the major version of 19devel is %d", got)
	}
}
