package blockcodec

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// testKey is a key whose bytes all are b.
func testKey(t testing.TB, b byte) *Key {
	t.Helper()
	k, err := ParseKey(bytes.Repeat([]byte{b}, keySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func testCodec(t testing.TB, m Method, ring *Ring) *Codec {
	t.Helper()
	c, err := New(m, ring, ring.First() != nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func noise(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

// rows is text that compresses, as a table's rows do.
func rows(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d|%d|%d|%d.%02d|1996-03-%02d|DELIVER IN PERSON|TRUCK|\n", i, i*7919%200000, i%7, i*31%1000, i%100, i%28+1)
	}
	return b.Bytes()[:n]
}

// all calls f for every method, with and without a key.
func all(t *testing.T, f func(t *testing.T, c *Codec)) {
	for _, m := range []Method{None, LZ4, Zstd} {
		for _, ring := range []*Ring{NewRing(), NewRing(testKey(t, 1), testKey(t, 2))} {
			t.Run(fmt.Sprintf("%v/%d keys", m, len(ring.Names())), func(t *testing.T) { f(t, testCodec(t, m, ring)) })
		}
	}
}

func mustBody(t testing.TB, c *Codec, id ID) *Body {
	t.Helper()
	b, err := c.NewBody(id, rand.NewChaCha8([32]byte{7}))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCodec_Open_GivesWhatWasAppended(t *testing.T) {
	id := ID{"volume", "objects/a"}
	all(t, func(t *testing.T, c *Codec) {
		b := mustBody(t, c, id)
		for i, plain := range [][]byte{
			{0}, {1, 2}, noise(1, 17), rows(4096), noise(2, MaxPlain), rows(MaxPlain), make([]byte, MaxPlain), rows(MaxPlain - 1),
		} {
			before := []byte("before")
			frame := b.Append(bytes.Clone(before), plain, uint32(i))
			if !bytes.HasPrefix(frame, before) {
				t.Fatalf("body %d: what was there before is gone", i)
			}
			frame = frame[len(before):]
			if len(frame) > len(plain)+Overhead {
				t.Errorf("%d bytes became %d", len(plain), len(frame))
			}
			got := noise(3, len(plain))
			if err := c.Open(got, frame, c.KeyName(), id, uint32(i)); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("body %d of %d bytes: %v", i, len(plain), err)
			}
		}
	})
}

func TestCodec_Append_CompressesWhatShrinksOnly(t *testing.T) {
	for _, m := range []Method{LZ4, Zstd} {
		b := mustBody(t, testCodec(t, m, nil), ID{})
		if frame := b.Append(nil, rows(MaxPlain), 0); len(frame) > MaxPlain/2 || Method(frame[0]) != m {
			t.Errorf("%v: rows of %d bytes became %d, method %d", m, MaxPlain, len(frame), frame[0])
		}
		if frame := b.Append(nil, noise(1, MaxPlain), 1); len(frame) != MaxPlain+1 || frame[0] != 0 {
			t.Errorf("%v: noise of %d bytes became %d, method %d", m, MaxPlain, len(frame), frame[0])
		}
	}
}

// Of every frame, every byte but those of plain frames' payloads decides: a
// flipped one is damage, or gives other bytes that the checksum of the plain
// bytes will tell.
func TestCodec_Open_EveryFlippedByteIsNoticed(t *testing.T) {
	id := ID{"volume", "objects/a"}
	all(t, func(t *testing.T, c *Codec) {
		for _, plain := range [][]byte{rows(3000), noise(5, 300)} {
			frame := mustBody(t, c, id).Append(nil, plain, 3)
			for i := range frame {
				bad := bytes.Clone(frame)
				bad[i] ^= 1 << (i % 8)
				got := make([]byte, len(plain))
				err := c.Open(got, bad, c.KeyName(), id, 3)
				switch {
				case err != nil && !errors.Is(err, ErrDamaged):
					t.Fatalf("byte %d: %v", i, err)
				case err == nil && c.KeyName() != "":
					t.Fatalf("byte %d of an encrypted frame was changed and it opened", i)
				case err == nil && c.method == None && bytes.Equal(got, plain):
					t.Fatalf("byte %d was changed and nobody noticed", i)
				}
			}
			for n := range frame {
				if err := c.Open(make([]byte, len(plain)), frame[:n], c.KeyName(), id, 3); err == nil && c.method == None {
					t.Fatalf("cut to %d bytes, it opened", n)
				}
			}
		}
	})
}

// A frame opens only as what it was made for.
func TestCodec_Open_OtherPlace(t *testing.T) {
	c := testCodec(t, Zstd, NewRing(testKey(t, 1), testKey(t, 2)))
	id := ID{"volume", "objects/a"}
	plain := rows(1000)
	frame := mustBody(t, c, id).Append(nil, plain, 3)
	got := make([]byte, len(plain))
	for name, err := range map[string]error{
		"number":        c.Open(got, frame, c.KeyName(), id, 4),
		"object":        c.Open(got, frame, c.KeyName(), ID{"volume", "objects/b"}, 3),
		"volume":        c.Open(got, frame, c.KeyName(), ID{"other", "objects/a"}, 3),
		"key":           c.Open(got, frame, testKey(t, 2).Name(), id, 3),
		"without a key": c.Open(got, frame, "", id, 3),
		"length":        c.Open(got[:999], frame, c.KeyName(), id, 3),
		"longer":        c.Open(make([]byte, 1001), frame, c.KeyName(), id, 3),
	} {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	other := testCodec(t, None, NewRing(testKey(t, 9)))
	if err := other.Open(got, frame, c.KeyName(), id, 3); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), c.KeyName()) || !strings.Contains(err.Error(), other.KeyName()) {
		t.Errorf("without the key: %v", err)
	}
	// A second key decrypts what was written before the keys were changed.
	rotated := testCodec(t, LZ4, NewRing(testKey(t, 9), testKey(t, 1)))
	if err := rotated.Open(got, frame, c.KeyName(), id, 3); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("with the key second: %v", err)
	}
}

// Two bodies, also of the same name and bytes, share no salt; two frames of one
// body no nonce.
func TestBody_Append_NoTwoFramesAlike(t *testing.T) {
	c := testCodec(t, None, NewRing(testKey(t, 1)))
	random := rand.NewChaCha8([32]byte{1})
	seen := map[string]bool{}
	for range 50 {
		b, err := c.NewBody(ID{"volume", "objects/a"}, random)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 4 {
			frame := b.Append(nil, []byte("the same bytes"), uint32(n))
			if s := string(frame[1+saltSize:]); seen[s] {
				t.Fatal("two frames are alike")
			} else {
				seen[s] = true
			}
		}
	}
	if _, err := c.NewBody(ID{}, strings.NewReader("short")); err == nil {
		t.Error("a body without a salt")
	}
}

func TestNew_EncryptWithoutKey(t *testing.T) {
	if _, err := New(None, NewRing(), true); !errors.Is(err, ErrNoKey) {
		t.Errorf("%v", err)
	}
	c := testCodec(t, None, nil)
	if c.Framing() {
		t.Error("nothing is compressed and nothing encrypted, and bodies are framed")
	}
}

func TestParseKey_Forms(t *testing.T) {
	raw := noise(4, keySize)
	want, err := ParseKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{hex.EncodeToString(raw), strings.ToUpper(hex.EncodeToString(raw)) + "\n", " " + base64.StdEncoding.EncodeToString(raw) + "\r\n"} {
		if k, err := ParseKey([]byte(s)); err != nil || k.Name() != want.Name() {
			t.Errorf("%q: %v, %v", s, k, err)
		}
	}
	for _, s := range []string{"", "secret", hex.EncodeToString(raw[:31]), base64.StdEncoding.EncodeToString(append(raw, 1)), strings.Repeat("x", 64)} {
		_, err := ParseKey([]byte(s))
		if !errors.Is(err, ErrKey) {
			t.Errorf("%q is a key: %v", s, err)
		}
		if s != "" && err != nil && strings.Contains(err.Error(), s) {
			t.Errorf("the error shows what was given: %v", err)
		}
	}
	for _, s := range []string{fmt.Sprint(want), fmt.Sprintf("%v %+v %#v %s", want, want, want, want)} {
		if strings.Contains(s, hex.EncodeToString(raw[:4])) || strings.Contains(s, fmt.Sprint(raw[0], raw[1])) {
			t.Errorf("a key prints its secret: %s", s)
		}
	}
}

func TestRing_Document_EveryFlippedByte(t *testing.T) {
	r := NewRing(testKey(t, 1), testKey(t, 2))
	id := ID{"volume", "commits/1"}
	doc := []byte(`{"kind":"commit"}`)
	body := r.SealDocument(doc, id)
	if len(body) != len(doc)+DocumentOverhead {
		t.Errorf("%d bytes became %d", len(doc), len(body))
	}
	if !bytes.Equal(body, r.SealDocument(doc, id)) {
		t.Error("the same document twice gives other bytes")
	}
	if got, err := NewRing(testKey(t, 2), testKey(t, 1)).OpenDocument(body, id); err != nil || !bytes.Equal(got, doc) {
		t.Fatalf("%q, %v", got, err)
	}
	for i := range body {
		bad := bytes.Clone(body)
		bad[i] ^= 1 << (i % 8)
		if _, err := r.OpenDocument(bad, id); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d: %v", i, err)
		}
		if _, err := r.OpenDocument(body[:i], id); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d: %v", i, err)
		}
	}
	if _, err := r.OpenDocument(body, ID{"volume", "commits/2"}); !errors.Is(err, ErrDamaged) {
		t.Errorf("under another name: %v", err)
	}
	if _, err := NewRing(testKey(t, 2)).OpenDocument(body, id); !errors.Is(err, ErrNoKey) {
		t.Errorf("with another key: %v", err)
	}
	var none *Ring
	if _, err := none.OpenDocument(body, id); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "none was given") {
		t.Errorf("without a key: %v", err)
	}
}

// The golden bytes open for ever.
func TestGolden(t *testing.T) {
	ring := NewRing(testKey(t, 1))
	id := ID{"2f1c8f6e-6f0a-4b5e-9a39-1f6d3b9f0c11", "objects/0000000000-01_0_4096_a"}
	plain := rows(600)
	made := map[string][]byte{
		"document":  ring.SealDocument([]byte(`{"kind":"commit","v":1}`), id),
		"none":      mustBody(t, testCodec(t, None, nil), id).Append(nil, plain, 5),
		"lz4":       mustBody(t, testCodec(t, LZ4, nil), id).Append(nil, plain, 5),
		"zstd":      mustBody(t, testCodec(t, Zstd, nil), id).Append(nil, plain, 5),
		"none-key":  mustBody(t, testCodec(t, None, ring), id).Append(nil, plain, 5),
		"lz4-key":   mustBody(t, testCodec(t, LZ4, ring), id).Append(nil, plain, 5),
		"zstd-key":  mustBody(t, testCodec(t, Zstd, ring), id).Append(nil, plain, 5),
		"key-names": []byte(strings.Join(ring.Names(), "\n")),
	}
	for name, bytesMade := range made {
		file := "testdata/v1/" + name + ".hex"
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) && os.Getenv("NEW_GOLDEN") != "" {
			if err := os.WriteFile(file, []byte(hex.EncodeToString(bytesMade)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		switch name {
		case "document":
			if got, err := ring.OpenDocument(want, id); err != nil || string(got) != `{"kind":"commit","v":1}` {
				t.Errorf("%s: %q, %v", file, got, err)
			}
		case "key-names":
			if string(want) != ring.First().Name() {
				t.Errorf("%s: the key is called %s", file, ring.First().Name())
			}
		default:
			key := ""
			if strings.HasSuffix(name, "-key") {
				key = ring.First().Name()
			}
			got := make([]byte, len(plain))
			if err := testCodec(t, None, ring).Open(got, want, key, id, 5); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

func FuzzCodec_Open(f *testing.F) {
	ring := NewRing(testKey(f, 1))
	c := testCodec(f, Zstd, nil)
	for _, m := range []Method{None, LZ4, Zstd} {
		f.Add(mustBody(f, testCodec(f, m, nil), ID{}).Append(nil, rows(900), 0), 900, false)
	}
	f.Fuzz(func(t *testing.T, frame []byte, n int, key bool) {
		if n < 0 || n > MaxPlain {
			return
		}
		name := ""
		if key {
			name = ring.First().Name()
		}
		err := c.Open(make([]byte, n), frame, name, ID{}, 0)
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoKey) {
			t.Fatal(err)
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	for _, m := range []Method{None, LZ4, Zstd} {
		for _, ring := range []*Ring{nil, NewRing(testKey(b, 1))} {
			name := m.String()
			if ring.First() != nil {
				name += "+aes"
			}
			c := testCodec(b, m, ring)
			plain := rows(MaxPlain)
			frame := mustBody(b, c, ID{}).Append(nil, plain, 0)
			b.Run(name+"/append", func(b *testing.B) {
				b.SetBytes(MaxPlain)
				body := mustBody(b, c, ID{})
				buf := make([]byte, 0, MaxPlain+Overhead)
				for i := range b.N {
					body.Append(buf, plain, uint32(i))
				}
				b.ReportMetric(float64(len(frame))/MaxPlain, "stored/plain")
			})
			b.Run(name+"/open", func(b *testing.B) {
				b.SetBytes(MaxPlain)
				got := make([]byte, MaxPlain)
				for range b.N {
					if err := c.Open(got, frame, c.KeyName(), ID{}, 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
