package access

import (
	"context"
	"strings"
)

// maxBearerBytes limits the bearers that are examined at all: a JWT of thousands of dots or megabytes must cost
// nothing.
const maxBearerBytes = 8 << 10

// Combine returns an Authenticator that chooses by the bearer's form: a bearer that begins with ph_ goes to tokens, one
// in the form of a JWT to jwts. Either may be nil, and then refuses.
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
