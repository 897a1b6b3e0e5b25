package metadata

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"unicode/utf8"
)

// formatVersion is the version of documents, pages and index records: the bytes
// in testdata/v1 must open for ever.
const formatVersion = 1

// crcTail is how a document ends; the digits are replaced.
const crcTail = `,"crc32c":"00000000"}`

// castagnoli returns the table of CRC32C, which hash/crc32 makes once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Hash returns the hex SHA-256 of a document's body: what its successor's Prev holds.
func Hash(body []byte) string {
	h := sha256.Sum256(body)
	return hex.EncodeToString(h[:])
}

// num is an unsigned number that may pass 2^53: a string in JSON.
type num uint64

// MarshalJSON implements json.Marshaler.
func (n num) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 22), '"')
	return append(strconv.AppendUint(b, uint64(n), 10), '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *num) UnmarshalJSON(b []byte) error {
	s, err := unquoteDigits(b)
	if err != nil {
		return err
	}
	v, err := strconv.ParseUint(s, 10, 64)
	*n = num(v)
	return err
}

// snum is a signed number that may pass 2^53: a string in JSON.
type snum int64

// MarshalJSON implements json.Marshaler.
func (n snum) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 22), '"')
	return append(strconv.AppendInt(b, int64(n), 10), '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *snum) UnmarshalJSON(b []byte) error {
	s, err := unquoteDigits(b)
	if err != nil {
		return err
	}
	v, err := strconv.ParseInt(s, 10, 64)
	*n = snum(v)
	return err
}

func unquoteDigits(b []byte) (string, error) {
	if len(b) < 3 || b[0] != '"' || b[len(b)-1] != '"' {
		return "", fmt.Errorf("%q is not a number in quotes", clip(b))
	}
	return string(b[1 : len(b)-1]), nil
}

// text is bytes that are usually a readable string.
type text string

type textBytes struct {
	B64 *[]byte `json:"b64"`
}

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if !plainText(string(t)) {
		b := append(make([]byte, 0, len(t)*4/3+16), `{"b64":"`...)
		b = base64.StdEncoding.AppendEncode(b, []byte(t))
		return append(b, `"}`...), nil
	}
	b := append(make([]byte, 0, len(t)+8), '"')
	for i := range len(t) {
		if t[i] == '"' || t[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, t[i])
	}
	return append(b, '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var v textBytes
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		if v.B64 == nil {
			return errors.New("a text is neither a string nor b64")
		}
		*t = text(*v.B64)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*t = text(s)
	return nil
}

// plainText says whether a JSON string holds s in at most twice its bytes and
// gives it back unchanged.
func plainText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 {
			return false
		}
	}
	return true
}

// sums is a list of checksums packed into base64.
type sums []uint32

// MarshalJSON implements json.Marshaler.
func (s sums) MarshalJSON() ([]byte, error) {
	raw := make([]byte, 0, 4*len(s))
	for _, v := range s {
		raw = binary.BigEndian.AppendUint32(raw, v)
	}
	b := append(make([]byte, 0, len(raw)*4/3+8), '"')
	b = base64.RawStdEncoding.AppendEncode(b, raw)
	return append(b, '"'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *sums) UnmarshalJSON(b []byte) error {
	var str string
	if err := json.Unmarshal(b, &str); err != nil {
		return err
	}
	raw, err := base64.RawStdEncoding.Strict().DecodeString(str)
	if err != nil {
		return err
	}
	if len(raw)%4 != 0 {
		return fmt.Errorf("%d bytes are not a list of 4-byte checksums", len(raw))
	}
	*s = make(sums, len(raw)/4)
	for i := range *s {
		(*s)[i] = binary.BigEndian.Uint32(raw[4*i:])
	}
	return nil
}

// docHead is what every document begins with.
type docHead struct {
	Kind string `json:"kind"`
	V    int    `json:"v"`
}

// marshal writes v as compact JSON. The documents hold only kinds of values that
// can always be written, so that an error is a broken invariant.
func marshal(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("metadata: a document always has a JSON form: %v", err))
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// sealDoc appends the checksum to a document that marshal wrote.
func sealDoc(v any) []byte {
	b := marshal(v)
	b = append(b[:len(b)-1], crcTail...)
	sum := crc32.Checksum(b, castagnoli())
	copy(b[len(b)-10:], fmt.Sprintf("%08x", sum))
	return b
}

// openDoc verifies a document's checksum, kind and version, and parses it.
func openDoc(body []byte, kind string, into any) error {
	head, err := verifyDoc(body, kind)
	if err != nil {
		return err
	}
	if head.Kind != kind {
		return damaged(kind, "it is a document of kind %q", head.Kind)
	}
	return parseDoc(body, kind, into)
}

func parseDoc(body []byte, kind string, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return damaged(kind, "%v", err)
	}
	return nil
}

// verifyDoc checks the checksum and the version of a document; what names the
// document in errors.
func verifyDoc(body []byte, what string) (docHead, error) {
	at := len(body) - len(crcTail)
	digits := len(body) - 10
	const lead = len(`,"crc32c":"`)
	if at < 1 || string(body[at:at+lead]) != crcTail[:lead] || string(body[len(body)-2:]) != `"}` {
		return docHead{}, damaged(what, "%d bytes that do not end in a checksum", len(body))
	}
	sum := crc32.Checksum(body[:digits], castagnoli())
	sum = crc32.Update(sum, castagnoli(), []byte(`00000000"}`))
	if want := fmt.Sprintf("%08x", sum); string(body[digits:len(body)-2]) != want {
		return docHead{}, damaged(what, "its checksum is %s, its bytes give %s", clip(body[digits:len(body)-2]), want)
	}
	var head docHead
	if err := json.Unmarshal(body, &head); err != nil {
		return docHead{}, damaged(what, "%v", err)
	}
	if head.V > formatVersion {
		return docHead{}, fmt.Errorf("%s document of format %d (this release reads up to %d): %w", what, head.V, formatVersion, ErrNewerFormat)
	}
	if head.V < 1 {
		return docHead{}, damaged(what, "format %d", head.V)
	}
	return head, nil
}

func damaged(what, format string, args ...any) error {
	return fmt.Errorf("%s is %w: %s", what, ErrDamaged, fmt.Sprintf(format, args...))
}

func clip(b []byte) []byte {
	if len(b) > 40 {
		return b[:40]
	}
	return b
}
