package kinds_test

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/kinds"
)

var errNobody = errors.New("there is no database")

// nobody is a database that is not there.
type nobody struct{}

func (nobody) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errNobody
}
func (nobody) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errNobody }
func (nobody) QueryRow(context.Context, string, ...any) pgx.Row        { return nil }

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}

func texts(s *kinds.Schemas) map[string]string {
	all := map[string]string{}
	for kind, text := range s.All() {
		all[kind] = string(text)
	}
	return all
}
