package dsn

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// clear empties the environment variables that pgx reads.
func clear(t *testing.T) {
	for _, name := range []string{"PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE", "PGSERVICE", "PGSERVICEFILE", "PGPASSFILE"} {
		t.Setenv(name, "")
	}
}

func TestTheCauseIsNamedAndNoSecret(t *testing.T) {
	clear(t)
	for given, want := range map[string]string{
		"postgres://u:geheim@h/d?sslmode=nonsense":                                    "sslmode is invalid",
		"postgres://u:geheim@h/d?sslmode=verify-full&sslrootcert=/nonexistent/ca.pem": "unable to read CA file: open /nonexistent/ca.pem: no such file or directory",
		"postgres://u:geheim@h/d?service=nothere":                                     "service",
		"postgres://u:geheim@h/d?pool_max_conns=abc":                                  "pool_max_conns",
		"postgres://u:geheim@h/d?pool_max_conns=0":                                    "pool_max_conns too small",
		"postgres://u:geheim@h/d?default_query_exec_mode=foo":                         `invalid default_query_exec_mode (unknown value "foo")`,
		"postgres://u:geheim@h/d?connect_timeout=abc":                                 "connect_timeout",
		"postgres://u:geheim@h/d?target_session_attrs=abc":                            "target_session_attrs",
		"postgres://u:geheim@h:port/d":                                                "invalid port",
		"host=h port=none password=geheim":                                            "invalid port",
		"host=h password=geheim sslmode=none":                                         "sslmode is invalid",
		"host=h password='geheim":                                                     "want something like",
		"host=h password=ein geheimnis":                                               "want something like",
		"geheim":                                                                      "want something like",
		"postgres://u:%zzgeheim@h/d":                                                  "want something like",
		"postgres://u:ge@heim@h:5432/d":                                               "%40",
		"postgres://u:12/geheim@h:5432/d":                                             "%2F",
		"postgres://u:ge@he/im@h:5432/d":                                              "%40",
		"postgres://u:ge@h@eim?x@h:5432/d":                                            "%40",
		" postgres://u:geheim@h/d?sslmode=disable":                                    "begins or ends",
		"'postgres://u:geheim@h/d?sslmode=disable'":                                   "begins or ends",
		"postgres://u:geheim@h/d?sslmode=disable\n":                                   "begins or ends",
		"postgres://u:geheim@h/d ":                                                    "begins or ends",
		"Postgres://u:geheim@h/d?sslmode=disable":                                     "begins with postgres://",
		"jdbc:postgresql://h/d?user=u&password=geheim":                                "begins with postgres://",
		"mysql://u:geheim@h/d?x=1":                                                    "begins with postgres://",
		"postgres://u:geheim@h/d":                                                     "",
		"postgres://u:ge%40heim%2F@h/d?user=a@b":                                      "",
		"postgres://u:ge?heim#@h/d":                                                   "",
		"postgres://h/d?user=a@b":                                                     "",
		"postgresql://h1:1,h2:2/d":                                                    "",
		"host=h user=u password='ge heim @ /' dbname='d'":                             "",
		"host=/var/run/postgresql user=a@b dbname=d ":                                 "",
		"": "",
	} {
		_, err := pgxpool.ParseConfig(given)
		got := Explain(given, err)
		if (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("%q: %v, want %q (pgx says %v)", given, got, want, err)
		}
		if got != nil && (strings.Contains(got.Error(), "heim") || strings.Contains(got.Error(), "ge@")) {
			t.Errorf("%q: %v shows a part of the password", given, got)
		}
	}
}

// Whatever the string, no part of its password is shown.
func FuzzExplain(f *testing.F) {
	for _, s := range []string{"p", "p@q", "p/q", "p?sslmode=q", "p q", "p'q", "p%zz", "p#", "p:q", "p&port=q", "p`: q", "/?target_session_attrs=", "?default_query_exec_mode="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, between string) {
		secret := "hushhush" + between + "quietquiet"
		for _, s := range []string{"postgres://u:" + secret + "@h:1/d?sslmode=none", "host=h password=" + secret + " sslmode=none", "host=h sslmode=none password='" + secret + "'"} {
			_, err := pgxpool.ParseConfig(s)
			if got := Explain(s, err); got != nil && (strings.Contains(got.Error(), "hushhush") || strings.Contains(got.Error(), "quietquiet")) {
				t.Errorf("%q: %v", s, got)
			}
		}
	})
}
