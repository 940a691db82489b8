package promtest

import "testing"

func TestNamesFindsWhatThereIsNot(t *testing.T) {
	t.Parallel()
	known := map[string][]string{"a_total": {"kind"}, "b": {}, "c:d:max": nil}
	for expr, want := range map[string]bool{
		`sum by (kind) (rate(a_total{kind=~"x|y"}[5m])) > 0`: true,
		`absent(b) unless max(c:d:max) == 0`:                 true,
		`sum by (any) (c:d:max)`:                             true,
		`max by (instance) (b)`:                              true,
		`rate(e_total[$__rate_interval])`:                    false,
		`sum by (queue) (a_total)`:                           false,
		`b{kind="x"}`:                                        false,
		`vector(0)`:                                          false,
	} {
		if err := Names(expr, known); (err == nil) != want {
			t.Errorf("%s: %v", expr, err)
		}
	}
}
