package blockcodec

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
)

const (
	documentMagic = "cstnenc1"
	documentSalt  = 16
	documentHead  = len(documentMagic) + nameSize + documentSalt
)

// DocumentOverhead is by how much an encrypted document is longer than a plain one.
const DocumentOverhead = documentHead + tagSize + crc32.Size

// SealDocument encrypts a document under the ring's first key, which there must
// be: the same bytes for the same document, id and key.
func (r *Ring) SealDocument(plain []byte, id ID) []byte {
	k := r.First()
	sum := k.mac("cistern document salt 1", id.Volume, id.Name, string(plain))
	salt := sum[:documentSalt]
	out := make([]byte, 0, len(plain)+DocumentOverhead)
	out = append(append(append(out, documentMagic...), k.name...), salt...)
	aead := k.derive("cistern document 1", id.Volume, id.Name, string(salt))
	out = aead.Seal(out, salt[:aead.NonceSize()], plain, []byte(id.Volume+"\x00"+id.Name))
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli()))
}

// OpenDocument decrypts what SealDocument made of id's document: ErrDamaged, ErrNoKey.
func (r *Ring) OpenDocument(body []byte, id ID) ([]byte, error) {
	if len(body) < DocumentOverhead || !strings.HasPrefix(string(body[:len(documentMagic)]), documentMagic) {
		return nil, fmt.Errorf("%w: it is not an encrypted document", ErrDamaged)
	}
	end := len(body) - crc32.Size
	if crc32.Checksum(body[:end], castagnoli()) != binary.BigEndian.Uint32(body[end:]) {
		return nil, fmt.Errorf("%w: its checksum does not match", ErrDamaged)
	}
	name, salt := string(body[len(documentMagic):][:nameSize]), body[documentHead-documentSalt:documentHead]
	k, err := r.Need(name)
	if err != nil {
		return nil, err
	}
	aead := k.derive("cistern document 1", id.Volume, id.Name, string(salt))
	plain, err := aead.Open(nil, salt[:aead.NonceSize()], body[documentHead:end], []byte(id.Volume+"\x00"+id.Name))
	if err != nil {
		return nil, fmt.Errorf("%w: authentication failed", ErrDamaged)
	}
	return plain, nil
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
