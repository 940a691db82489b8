package access

import (
	"context"
	"strings"
)

// maxBearerBytes bounds what is looked at at all: a JWT of thousands of dots or
// megabytes must cost nothing.
const maxBearerBytes = 8 << 10

// Combine chooses by the bearer's form: what begins with ph_ is for tokens, what
// has the form of a JWT is for jwts. Either may be nil: it then refuses.
func Combine(tokens, jwts Authenticator) Authenticator { return combined{tokens, jwts} }

type combined struct{ tokens, jwts Authenticator }

func (c combined) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	judge := c.tokens
	switch {
	case len(bearer) > maxBearerBytes:
		return Principal{}, refused("the bearer is %d bytes long", len(bearer))
	case isToken(bearer):
	case strings.Count(bearer, ".") == 2:
		judge = c.jwts
	default:
		return Principal{}, refused("the bearer is neither a token nor a JWT")
	}
	if judge == nil {
		return Principal{}, refused("bearers of this form are not taken")
	}
	return judge.Authenticate(ctx, bearer)
}
