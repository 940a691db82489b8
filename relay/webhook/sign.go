package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// Signing sets the keys by which receivers authenticate requests, according to Standard Webhooks. The zero value signs
// nothing.
type Signing struct {
	// Secrets are each whsec_ and the key in base64, of 24 to 64 bytes. Two secrets both sign, while receivers change
	// from one to the other: a receiver accepts a request if it can verify one of its signatures.
	Secrets []string
	// File contains such secrets instead, one per line. It is read again for each request of a job and each batch of a
	// sink, so that secrets can be rotated.
	File string
}

const (
	secretPrefix         = "whsec_"
	leastKey, mostKey    = 24, 64
	maxSecrets           = 2
	headerWebhookID      = "Webhook-Id"
	headerTimestamp      = "Webhook-Timestamp"
	headerSignature      = "Webhook-Signature"
	headerIdempotencyKey = "Idempotency-Key"
)

// validate checks everything except the content of the file, which may change.
func (s Signing) validate() error {
	if s.File != "" && len(s.Secrets) > 0 {
		return errors.New("both Secrets and the secrets' File are set")
	}
	if s.File != "" {
		return nil
	}
	_, err := s.keys()
	return err
}

// keys returns the keys to sign with, or none if nothing is to be signed. Its errors contain no secret.
func (s Signing) keys() (keys [][]byte, err error) {
	secrets := s.Secrets
	if s.File != "" {
		content, err := credentials.Secret("", s.File)
		if err != nil {
			return nil, err
		}
		if secrets = strings.Fields(content); len(secrets) == 0 {
			return nil, fmt.Errorf("%s has no secret in it", s.File)
		}
	}
	if len(secrets) > maxSecrets {
		return nil, fmt.Errorf("there are %d secrets, want at most %d", len(secrets), maxSecrets)
	}
	for i, secret := range secrets {
		text, ok := strings.CutPrefix(secret, secretPrefix)
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < leastKey || len(key) > mostKey {
			return nil, fmt.Errorf("secret %d is not %s and %d to %d bytes in base64", i+1, secretPrefix, leastKey,
				mostKey)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// sign sets the signature headers of a request that is made now. Without keys it sets none.
func sign(header http.Header, keys [][]byte, id string, now time.Time, body []byte) {
	if len(keys) == 0 {
		return
	}
	timestamp := strconv.FormatInt(now.Unix(), 10)
	var signatures []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(id + "." + timestamp + "."))
		_, _ = mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	header.Set(headerWebhookID, id)
	header.Set(headerTimestamp, timestamp)
	header.Set(headerSignature, strings.Join(signatures, " "))
}
