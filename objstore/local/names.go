package local

import (
	"path"
	"strings"
)

// Names on disk: wire format, see doc.go. The bytes of a bucket written by any
// version must stay readable.
const (
	maxName  = 240 // bytes of a file name, before the marks appended to it
	mark     = "%"
	longMark = "%%"
	emptySeg = "%_"
	hexUpper = "0123456789ABCDEF"
)

// pathOf returns the path of key below the bucket's directory.
func pathOf(key string) string {
	segs := strings.Split(key, "/")
	var parts []string
	for i, seg := range segs {
		parts = appendSegment(parts, seg, i < len(segs)-1)
	}
	return path.Join(parts...)
}

// appendSegment appends the file names that stand for one segment of a key.
func appendSegment(parts []string, seg string, isDir bool) []string {
	for {
		name, n := escape(seg)
		if n == len(seg) {
			if strings.Contains(seg, ".") == isDir {
				name += mark
			}
			return append(parts, name)
		}
		parts = append(parts, name+longMark)
		seg = seg[n:]
	}
}

// escape returns the name of as much of seg as fits into maxName bytes, and
// how many bytes of seg that is.
func escape(seg string) (name string, n int) {
	if seg == "" {
		return emptySeg, 0
	}
	var b strings.Builder
	for i := range len(seg) {
		c := seg[i]
		plain := isPlain(c, i)
		if plain && b.Len()+1 <= maxName {
			b.WriteByte(c)
		} else if !plain && b.Len()+3 <= maxName {
			b.Write([]byte{'%', hexUpper[c>>4], hexUpper[c&15]})
		} else {
			return b.String(), i
		}
	}
	return b.String(), len(seg)
}

// isPlain says whether the byte c at position i of a segment stands for itself.
func isPlain(c byte, i int) bool {
	return c >= ' ' && c < 0x7f && c != '%' && (c != '.' || i > 0)
}

// kind is what a name on disk stands for.
type kind int

const (
	foreign   kind = iota // nothing of ours
	object                // a segment that ends a key
	directory             // a segment that others follow
	piece                 // the beginning of a longer segment
)

// parseName returns what the file name of an entry stands for. It is the
// inverse of appendSegment and accepts only what that writes.
func parseName(name string, isDir bool) (seg string, k kind) {
	body, isPiece := strings.CutSuffix(name, longMark)
	marked := false
	if !isPiece {
		body, marked = strings.CutSuffix(name, mark)
	}
	seg, ok := unescape(body)
	if !ok {
		return "", foreign
	}
	switch {
	case isPiece && isDir && seg != "":
		return seg, piece
	case isPiece || (strings.Contains(seg, ".") == isDir) != marked:
		return "", foreign
	case isDir:
		return seg, directory
	default:
		return seg, object
	}
}

// unescape undoes escape, for names that escape would have made.
func unescape(name string) (seg string, ok bool) {
	if name == emptySeg {
		return "", true
	}
	if name == "" || len(name) > maxName {
		return "", false
	}
	plain := true
	for i := range len(name) {
		plain = plain && isPlain(name[i], i)
	}
	if plain {
		return name, true // most are, and a listing reads many
	}
	b := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' {
			if i+2 >= len(name) {
				return "", false
			}
			hi, lo := strings.IndexByte(hexUpper, name[i+1]), strings.IndexByte(hexUpper, name[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			c = byte(hi<<4 | lo)
			i += 2
		}
		b = append(b, c)
	}
	again, n := escape(string(b))
	return string(b), again == name && n == len(b)
}
