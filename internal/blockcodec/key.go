package blockcodec

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// keySize is the length of a key in bytes.
const keySize = 32

// nameSize is the length of a key's name in characters.
const nameSize = 16

var (
	// ErrNoKey: what was to be opened names a key that the ring has not.
	ErrNoKey = errors.New("encryption key is missing")
	// ErrDamaged: a frame or document is not what was sealed.
	ErrDamaged = errors.New("does not decrypt or decompress to what was stored")
	// ErrKey: what was given as a key is none.
	ErrKey = errors.New("not an encryption key")
)

// Key is a secret of 32 bytes. It never prints itself.
type Key struct {
	name   string
	secret [keySize]byte
}

// ParseKey reads a key: 32 raw bytes, or their 64 hex digits or their base64
// with white space around. The error is ErrKey and shows nothing of the bytes.
func ParseKey(b []byte) (*Key, error) {
	raw := b
	if len(b) != keySize {
		text := string(bytes.TrimSpace(b))
		var err error
		if raw, err = hex.DecodeString(text); err != nil || len(raw) != keySize {
			raw, err = base64.StdEncoding.DecodeString(text)
		}
		if err != nil || len(raw) != keySize {
			return nil, fmt.Errorf("%w: 32 raw bytes, 64 hex digits or 44 characters of base64 are wanted, and these are %d bytes", ErrKey, len(b))
		}
	}
	k := &Key{secret: [keySize]byte(raw)}
	name := k.mac("cistern key name")
	k.name = hex.EncodeToString(name[:nameSize/2])
	return k, nil
}

// Name tells the key from others and says nothing about it.
func (k *Key) Name() string { return k.name }

// String implements fmt.Stringer, so that no log shows the secret.
func (k *Key) String() string { return "key " + k.name }

// GoString implements fmt.GoStringer, for the same reason.
func (k *Key) GoString() string { return k.String() }

// mac is the HMAC-SHA-256 of the parts, with zero bytes between them.
func (k *Key) mac(parts ...string) [sha256.Size]byte {
	h := hmac.New(sha256.New, k.secret[:])
	for i, p := range parts {
		if i > 0 {
			h.Write([]byte{0}) // a hash's Write does not fail
		}
		h.Write([]byte(p))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// derive makes the cipher of one body or document.
func (k *Key) derive(parts ...string) cipher.AEAD {
	sub := k.mac(parts...)
	block, err := aes.NewCipher(sub[:])
	if err != nil {
		panic("blockcodec: AES refuses a key of 32 bytes: " + err.Error())
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("blockcodec: GCM refuses AES: " + err.Error())
	}
	return aead
}

// Ring holds keys: the first encrypts, all of them decrypt. A nil ring has none.
type Ring struct{ keys []*Key }

// NewRing makes a ring; a key given twice counts once.
func NewRing(keys ...*Key) *Ring {
	r := &Ring{}
	for _, k := range keys {
		if r.Find(k.name) == nil {
			r.keys = append(r.keys, k)
		}
	}
	return r
}

// First is the key that encrypts; nil when the ring is empty.
func (r *Ring) First() *Key {
	if r == nil || len(r.keys) == 0 {
		return nil
	}
	return r.keys[0]
}

// Find returns the key of that name, or nil.
func (r *Ring) Find(name string) *Key {
	if r == nil {
		return nil
	}
	for _, k := range r.keys {
		if k.name == name {
			return k
		}
	}
	return nil
}

// Names lists the keys in their order.
func (r *Ring) Names() []string {
	if r == nil {
		return nil
	}
	var names []string
	for _, k := range r.keys {
		names = append(names, k.name)
	}
	return names
}

// Need returns the key of that name, or an ErrNoKey that names it and what there is.
func (r *Ring) Need(name string) (*Key, error) {
	if k := r.Find(name); k != nil {
		return k, nil
	}
	have := "none was given"
	if names := r.Names(); len(names) > 0 {
		have = "given were " + strings.Join(names, ", ")
	}
	return nil, fmt.Errorf("%w: key %s is needed, %s", ErrNoKey, name, have)
}
