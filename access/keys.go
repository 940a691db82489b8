package access

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
)

const (
	// keysFresh is how long keys are used without asking the provider whether they are still valid, keysStale how long
	// at most if it does not answer.
	keysFresh = 10 * time.Minute
	keysStale = 24 * time.Hour

	// keysRest is the time between two requests to the provider, whatever bearers claim: invented key ids do not make
	// us ask more often.
	keysRest = 30 * time.Second

	maxKeys    = 100
	minRSABits = 2048
	maxRSABits = 8192 // as in TLS: verifying a signature with a larger key takes long
)

// providerKeys holds the keys with which a provider signs, by their ids.
type providerKeys struct {
	url    string
	client *http.Client
	log    *slog.Logger
	flight singleflight.Group

	mu      sync.Mutex
	known   map[string]signingKey
	fetched time.Time // when the last answered request was sent
	asked   time.Time // when the last request was sent, answered or not
	failure error     // of the last request
}

type signingKey struct {
	key       crypto.PublicKey
	algorithm string // "" if the provider does not bind it to one
}

func newProviderKeys(url string, client *http.Client, log *slog.Logger) *providerKeys {
	return &providerKeys{url: url, client: client, log: log}
}

// find returns the key with which a JWT claims to be signed. For an invalid bearer it returns [ErrUnauthenticated];
// another error means that the provider must be asked and does not answer.
func (p *providerKeys) find(ctx context.Context, id, algorithm string) ([]crypto.PublicKey, error) {
	key, fresh := p.recall(id)
	if key == nil || !fresh {
		asking := p.ask(ctx)
		if key == nil && asking != nil { // a known key is used meanwhile
			select {
			case <-asking:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			key, _ = p.recall(id)
		}
	}
	if key == nil {
		return nil, p.explain(id)
	}
	if key.algorithm != "" && key.algorithm != algorithm {
		return nil, refused("the key %.64q is for %s, not %s", id, key.algorithm, algorithm)
	}
	return []crypto.PublicKey{key.key}, nil
}

// recall returns the key if it is known; a JWT without a key id may mean the only key.
func (p *providerKeys) recall(id string) (key *signingKey, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := time.Since(p.fetched)
	if age > keysStale {
		return nil, false
	}
	if k, ok := p.known[id]; ok {
		return &k, age < keysFresh
	}
	if id == "" && len(p.known) == 1 {
		for _, k := range p.known {
			return &k, age < keysFresh
		}
	}
	return nil, false
}

// ask sends a request to the provider, unless one was sent recently. It returns what to wait on, or nil.
func (p *providerKeys) ask(ctx context.Context) <-chan singleflight.Result {
	if p.resting() {
		return nil
	}
	return p.flight.DoChan("", func() (any, error) {
		// A caller that read the time before it got here may have been overtaken by a whole flight.
		if p.resting() {
			return nil, nil //nolint:nilnil // nobody reads it
		}
		err := p.refresh(context.WithoutCancel(ctx))
		if err != nil {
			p.log.LogAttrs(ctx, slog.LevelWarn, "keys of the OIDC provider not refreshed", slog.Any("err", err))
		}
		return nil, err
	})
}

// resting reports whether the provider was asked recently.
func (p *providerKeys) resting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.asked) < keysRest
}

// explain returns why a key was not found.
func (p *providerKeys) explain(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure != nil {
		return fmt.Errorf("authenticate a JWT: %w, and its key %.64q is not known: %w", ErrProviderAway, id, p.failure)
	}
	return refused("the provider has no key %.64q", id)
}

// refresh asks the provider for its keys and drops those that it no longer has.
func (p *providerKeys) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	asked := time.Now()
	known, err := p.fetch(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.failure = asked, err
	if err == nil {
		p.known, p.fetched = known, asked
	}
	return err
}

func (p *providerKeys) fetch(ctx context.Context) (map[string]signingKey, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch keys: %s answers %s", p.url, response.Status)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	known, err := parseKeys(body)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %s answers what is no key set: %w", p.url, err)
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("fetch keys: %s has none that can be used for signatures", p.url)
	}
	return known, nil
}

// parseKeys returns the public keys of a key set that are for signatures; it leaves out everything else, symmetric keys
// above all.
func parseKeys(body []byte) (map[string]signingKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, err
	}
	known := map[string]signingKey{}
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if len(known) == maxKeys || json.Unmarshal(raw, &k) != nil || k.Use != "" && k.Use != "sig" {
			continue
		}
		switch key := k.Key.(type) {
		case *rsa.PublicKey:
			if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits || key.E < 3 {
				continue
			}
		case *ecdsa.PublicKey, ed25519.PublicKey:
		default:
			continue
		}
		known[k.KeyID] = signingKey{k.Key, k.Algorithm}
	}
	return known, nil
}
