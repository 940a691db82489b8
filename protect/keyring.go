package protect

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/outbox"
)

// SealedType is the content type of content encrypted by a [Keyring].
const SealedType = SealedPrefix + "sealed"

// ErrUnreadable reports that no key of the ring sealed the content for this place, or that the content was changed
// since.
var ErrUnreadable = errors.New("content cannot be opened")

// A Key is 256 bits that encrypt the keys of contents, with an ID by which sealed content names the key that opens it.
// IDs are not secret.
type Key struct {
	ID     string // 1 to 64 bytes
	Secret [32]byte
}

// String and GoString keep the secret out of logs.
func (k Key) String() string   { return "key " + k.ID }
func (k Key) GoString() string { return k.String() }

// A Keyring encrypts with AES-256-GCM: it encrypts each content with a key of its own, and that key with the ring's
// current one. It authenticates tenant, job and column, so content that is moved to another row or column does not
// open. A key may seal 2^32 contents.
//
// Rotation takes two rollouts, because a process opens only content sealed by a key of its ring: first give every
// process the new key among the old ones, and only then make the new key the current one. Keep the old keys until none
// of the content that they sealed is left.
//
// A Keyring is safe for concurrent use.
type Keyring struct {
	current string
	keys    map[string]cipher.AEAD
}

// NewKeyring returns a ring that seals with current and opens with all keys.
func NewKeyring(current Key, old ...Key) (*Keyring, error) {
	r := &Keyring{current: current.ID, keys: map[string]cipher.AEAD{}}
	for i, k := range append([]Key{current}, old...) {
		field := "current"
		if i > 0 {
			field = fmt.Sprintf("old[%d]", i-1)
		}
		switch _, twice := r.keys[k.ID]; {
		case len(k.ID) == 0 || len(k.ID) > 64:
			return nil, invalid(field+".ID", "is %d bytes long, want 1 to 64", len(k.ID))
		case twice:
			return nil, invalid(field+".ID", "is %q, which two keys have", k.ID)
		case k.Secret == [32]byte{}:
			return nil, invalid(field+".Secret", "of key %q is all zeros", k.ID)
		}
		r.keys[k.ID] = gcm(k.Secret[:])
	}
	return r, nil
}

// invalid duplicates internal/invalid, which imports package outbox and so lies in the same layer as this package.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("protect: %w", &outbox.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// gcm returns AES-256-GCM with a key of 32 bytes.
func gcm(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only for a key of another length
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// A sealed content is
//
//	magic, length of the key's ID, ID, nonce, sealed content key, sealed content
//
// and the plain content in it is the length of its type, the type, and its bytes. Each content key is used once, so its
// nonce is zero.
const (
	magic     = "\x00ph\x01"
	keySize   = 32
	nonceSize = 12
	tagSize   = 16
)

// Seal encrypts plain for the given part.
func (r *Keyring) Seal(_ context.Context, of outbox.Part, plain outbox.Content) (outbox.Content, error) {
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	about := associated(of, r.current)

	sealed := make([]byte, 0, len(magic)+1+len(r.current)+nonceSize+keySize+tagSize+binary.MaxVarintLen64+len(
		plain.Type)+len(plain.Bytes)+tagSize)
	sealed = append(sealed, magic...)
	sealed = append(sealed, byte(len(r.current)))
	sealed = append(sealed, r.current...)
	sealed = append(sealed, nonce...)
	sealed = r.keys[r.current].Seal(sealed, nonce, key, about)

	content := make([]byte, 0, binary.MaxVarintLen64+len(plain.Type)+len(plain.Bytes))
	content = binary.AppendUvarint(content, uint64(len(plain.Type)))
	content = append(content, plain.Type...)
	content = append(content, plain.Bytes...)
	sealed = gcm(key).Seal(sealed, make([]byte, nonceSize), content, about)
	return outbox.Content{Type: SealedType, Bytes: sealed}, nil
}

// Open decrypts content that Seal sealed for the same part. It returns content of another type unchanged. The error
// wraps [ErrUnreadable].
func (r *Keyring) Open(_ context.Context, of outbox.Part, sealed outbox.Content) (outbox.Content, error) {
	if sealed.Type != SealedType {
		return sealed, nil
	}
	id, nonce, wrapped, body, err := parse(sealed.Bytes)
	if err != nil {
		return outbox.Content{}, err
	}
	ring, ok := r.keys[id]
	if !ok {
		return outbox.Content{}, fmt.Errorf("%w: key %q is not in the ring", ErrUnreadable, id)
	}
	about := associated(of, id)
	key, err := ring.Open(nil, nonce, wrapped, about)
	if err != nil {
		return outbox.Content{}, fmt.Errorf("%w: it was not sealed for the %s of this job by key %q, or was changed",
			ErrUnreadable, of.Column, id)
	}
	content, err := gcm(key).Open(nil, make([]byte, nonceSize), body, about)
	if err != nil {
		return outbox.Content{}, fmt.Errorf("%w: it was changed", ErrUnreadable)
	}
	n, read := binary.Uvarint(content)
	if read <= 0 || n > uint64(len(content)-read) {
		return outbox.Content{}, fmt.Errorf("%w: its type is cut off", ErrUnreadable)
	}
	end := read + int(n)
	return outbox.Content{Type: string(content[read:end]), Bytes: content[end:]}, nil
}

func parse(sealed []byte) (id string, nonce, wrapped, body []byte, err error) {
	head := len(magic) + 1
	if len(sealed) < head || string(sealed[:len(magic)]) != magic {
		return "", nil, nil, nil, fmt.Errorf("%w: it does not begin as sealed content does", ErrUnreadable)
	}
	n := int(sealed[len(magic)])
	if len(sealed) < head+n+nonceSize+keySize+2*tagSize {
		return "", nil, nil, nil, fmt.Errorf("%w: it is cut off", ErrUnreadable)
	}
	rest := sealed[head+n:]
	return string(sealed[head : head+n]), rest[:nonceSize], rest[nonceSize : nonceSize+keySize+tagSize],
		rest[nonceSize+keySize+tagSize:], nil
}

// associated returns the data that is authenticated with the content. The fields before the ID have a fixed length,
// except the column, which a NUL ends.
func associated(of outbox.Part, keyID string) []byte {
	about := make([]byte, 0, len(magic)+32+len(of.Column)+1+len(keyID))
	about = append(about, magic...)
	about = append(about, of.Tenant[:]...)
	about = append(about, of.Job[:]...)
	about = append(about, of.Column...)
	about = append(about, 0)
	return append(about, keyID...)
}
