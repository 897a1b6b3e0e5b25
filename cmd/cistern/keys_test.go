package main

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/blockcodec"
)

// key makes a key file of 32 bytes of b and returns its path and the key's name.
func (p *place) key(name string, b byte) (path, keyName string) {
	p.t.Helper()
	raw := []byte(strings.Repeat(string(b), 32))
	k, err := blockcodec.ParseKey(raw)
	if err != nil {
		p.t.Fatal(err)
	}
	path = p.write(name, []byte(hex.EncodeToString(raw)+"\n"))
	if err := os.Chmod(path, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path, k.Name()
}

// Every command that opens an encrypted volume takes its key by flag,
// environment or file, and without it says which one is missing and changes nothing.
func TestApp_Encrypted_EveryCommandNeedsTheKey(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	file, name := p.key("key", 'k')
	other, otherName := p.key("other", 'o')
	out := p.must("format", u, "--object-size", "1M", "--compress", "zstd", "--encrypt-key-file", file)
	if !strings.Contains(out, "compressed by zstd, encrypted with key "+name) {
		t.Errorf("format says %q", out)
	}
	secret := strings.Repeat("a secret order\n", 200000)
	src := p.write("orders.ibd", []byte(secret))
	p.must("put", u, src, "orders.ibd", "--encrypt-key-file", file)
	before := p.bucketFiles()
	for key, body := range before {
		if strings.Contains(body, "secret order") || strings.Contains(body, "orders.ibd") || strings.Contains(key, "orders") {
			t.Errorf("%s is readable", key)
		}
	}
	commands := [][]string{
		{"ls", u}, {"cat", u, "orders.ibd"}, {"stat", u, "orders.ibd"}, {"du", u}, {"get", u, "orders.ibd", p.path("got")}, {"log", u}, {"status", u},
		{"check", u}, {"dump", "commit", u}, {"dump", "segment", u}, {"collect", u}, {"put", u, src, "more"}, {"rm", u, "orders.ibd"}, {"sync", u},
		{"check", "--repair", u}, {"mount", u, p.path(), "--foreground"},
	}
	for _, c := range commands {
		if c[0] == "mount" {
			if err := os.Mkdir(p.path("mnt"), 0o755); err != nil {
				t.Fatal(err)
			}
			c[2] = p.path("mnt")
		}
		p.fails(exitUsage, "no key was given", c...)
		p.fails(exitUsage, name, append(c, "--encrypt-key-file", other)...)
		p.fails(exitUsage, otherName, append(c, "--encrypt-key-file", other)...)
	}
	if after := p.bucketFiles(); len(after) != len(before) {
		t.Errorf("the bucket had %d objects and has %d", len(before), len(after))
	}
	if got := p.must("cat", u, "orders.ibd", "--encrypt-key-file", file); got != secret {
		t.Error("cat gives other bytes")
	}
	p.env["CISTERN_ENCRYPT_KEY_FILE"] = file
	p.must("check", "--data", u)
	delete(p.env, "CISTERN_ENCRYPT_KEY_FILE")
	p.env["CISTERN_ENCRYPT_KEY"] = hex.EncodeToString([]byte(strings.Repeat("k", 32)))
	if out := p.must("dump", "commit", u); !strings.Contains(out, "orders.ibd") || !strings.Contains(out, `"kind": "commit"`) {
		t.Errorf("dump shows %q", out)
	}
	p.env["CISTERN_ENCRYPT_KEY"] = "nonsense"
	p.fails(exitUsage, "CISTERN_ENCRYPT_KEY, key 1: not an encryption key", "ls", u)
	delete(p.env, "CISTERN_ENCRYPT_KEY")
	config := p.write("cistern.cnf", []byte("[Encryption]\nkey_file = "+other+":"+file+"\n[mount]\ncache_size = 64M\n"))
	r := decode[checkReport](t, p.must("check", "--json", u, "--config", config))
	if r.Keys[name] == 0 || r.Keys[name] != r.StoredBytes || r.StoredBytes > r.PlainBytes/10 {
		t.Errorf("check reports %+v", r.checkResult)
	}
	if s := decode[volumeStatus](t, p.must("status", "--json", u, "--config", config)); s.Compress != "zstd" || len(s.Keys) != 1 || s.Keys[0] != name {
		t.Errorf("status: %+v", s)
	}
	e := decode[[]entry](t, p.must("stat", "--json", "--slots", u, "orders.ibd", "--config", config))[0]
	if e.Slots.StoredBytes == 0 || e.Slots.StoredBytes > e.Size/10 {
		t.Errorf("stat: %+v", e.Slots)
	}
	// The config's first key writes from now on, and both are needed.
	p.must("put", u, src, "more", "--config", config)
	p.fails(exitUsage, otherName, "ls", u, "--encrypt-key-file", file)
	if got := p.must("ls", u, "--encrypt-key-file", file, "--encrypt-key-file", other); got != "more\norders.ibd\n" {
		t.Errorf("ls with both: %q", got)
	}
	p.must("destroy", "--yes", u)
}

func TestApp_KeyFile_Refused(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	file, _ := p.key("key", 'k')
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	p.fails(exitUsage, "chmod 600", "format", u, "--encrypt-key-file", file)
	p.fails(exitUsage, "no such file", "format", u, "--encrypt-key-file", p.path("missing"))
	short := p.write("short", []byte("a pass phrase"))
	if err := os.Chmod(short, 0o600); err != nil {
		t.Fatal(err)
	}
	p.fails(exitUsage, "not an encryption key", "format", u, "--encrypt-key-file", short)
	p.fails(exitUsage, "names are readable", "format", u, "--encrypt-names=false")
	p.fails(exitUsage, "choose none or lz4 or zstd", "format", u, "--compress", "gzip")
	p.fails(exitUsage, "no such setting", "format", u, "--config", p.write("c", []byte("[Encryption]\nkey = x\n")))
	if _, err := os.Stat(p.path("bucket", "volume.json")); err == nil {
		t.Error("a volume was made")
	}
}

func TestApp_Format_ReadableNames(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	file, name := p.key("key", 'k')
	f := decode[formatted](t, p.must("format", u, "--json", "--encrypt-key-file", file, "--encrypt-names=false"))
	if f.Compress != "none" || f.Key != name || !f.PlainNames {
		t.Errorf("%+v", f)
	}
	p.must("put", u, p.write("orders.ibd", random(3<<20)), "orders.ibd", "--encrypt-key-file", file)
	readable := false
	for key, body := range p.bucketFiles() {
		readable = readable || strings.HasPrefix(key, "commits/") && strings.Contains(body, `"orders.ibd"`)
	}
	if !readable {
		t.Error("no commit shows the file's name")
	}
	p.fails(exitUsage, name, "ls", u)
}

// What asks the mount of an encrypted volume needs no key, and neither does what was
// never encrypted; everything else says which key it needs. A key that was replaced
// writes nothing any more, and what its writer had not committed comes back with the keys.
func TestMount_Encrypted_CommandsRotationSalvage(t *testing.T) {
	p, mnt := mountPlaceOf(t, func(p *place) []string {
		file, _ := p.key("key", 'k')
		return []string{"--encrypt-key-file", file}
	})
	file, name := p.key("key", 'k')
	newer, newName := p.key("newer", 'n')
	pid := p.mount("--encrypt-key-file", file)
	src := p.write("src", random(300000))
	p.must("put", mnt, src, "orders")
	commands := [][]string{
		{"ls", mnt}, {"cat", mnt, "orders"}, {"stat", mnt, "orders"}, {"du", mnt}, {"get", mnt, "orders", p.path("got")}, {"put", mnt, src, "more"},
		{"rm", mnt, "more"}, {"sync", mnt}, {"status", mnt}, {"check", mnt}, {"collect", mnt},
		{"snapshot", "create", mnt, "one"}, {"snapshot", "list", mnt}, {"snapshot", "delete", mnt, "one"}, {"dump", "lease", mnt}, {"dump", "pin", mnt},
		{"ls", p.url()}, {"sync", p.url()}, {"snapshot", "list", p.url()},
	}
	for _, c := range commands {
		p.must(c...)
	}
	p.must("snapshot", "create", mnt, "kept")
	for _, c := range [][]string{{"log", mnt}, {"dump", "commit", mnt}, {"dump", "manifest", mnt}, {"dump", "segment", mnt}, {"snapshot", "show", mnt, "kept"},
		{"snapshot", "diff", mnt, "kept"}, {"ls", mnt + "@kept"}, {"check", "--data", mnt}} {
		p.fails(exitUsage, "no key was given", c...)
		p.must(append(c, "--encrypt-key-file", file)...)
	}

	// Another owner brings a new key, and takes over what the first has not committed.
	if err := os.WriteFile(filepath.Join(mnt, "late"), []byte("not committed"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.kill(pid)
	if status, _, errs := p.binary("umount", mnt); !strings.Contains(errs, "the mount is taken away") {
		t.Fatalf("umount of a dead mount: %d %q", status, errs)
	}
	// Names are relative to where the command is given, also for the process that stays.
	p.env["CISTERN_ENCRYPT_KEY_FILE"] = filepath.Base(newer) + ":" + filepath.Base(file)
	p.cwd = p.dir
	p.mustBinary("mount", p.url(), mnt, "--state", p.path("other state"), "--takeover")
	p.env["CISTERN_ENCRYPT_KEY_FILE"] = newer + ":" + file
	p.must("put", mnt, src, "by the new key")
	p.mustBinary("umount", mnt)
	if s := decode[volumeStatus](t, p.must("status", "--json", p.url())); len(s.Keys) != 2 || s.Keys[0] != newName || s.Keys[1] != name {
		t.Errorf("status names the keys %v", s.Keys)
	}
	p.env["CISTERN_ENCRYPT_KEY_FILE"] = file + ":" + newer
	p.fails(exitUsage, name+" was replaced by key "+newName, "put", p.url(), src, "by the old key")
	p.fails(exitUsage, name+" was replaced by key "+newName, "mount", p.url(), mnt, "--state", p.path("third"), "--foreground")
	if got := p.must("ls", p.url()); got != "by the new key\norders\n" {
		t.Errorf("ls: %q", got) // to read the order is of no matter
	}
	p.env["CISTERN_ENCRYPT_KEY_FILE"] = newer
	p.fails(exitUsage, name, "ls", p.url())
	state := p.path("state")
	p.fails(exitUsage, "--no-bucket", "salvage", state)
	delete(p.env, "CISTERN_ENCRYPT_KEY_FILE")
	p.fails(exitUsage, "no key was given", "salvage", "--to", p.path("back"), state)
	if out := p.must("salvage", "--no-bucket", state); !strings.Contains(out, "late") {
		t.Errorf("salvage without the bucket: %q", out)
	}
	p.env["CISTERN_ENCRYPT_KEY_FILE"] = newer + ":" + file
	r := decode[[]*gateway.SalvageReport](t, p.must("salvage", "--json", "--to", p.path("back2"), state))
	if len(r) != 1 || !r[0].BaseRead {
		t.Fatalf("%+v", r)
	}
	if got := readFile(t, p.path("back2", r[0].ID, "files", "late")); got != "not committed" {
		t.Errorf("salvage brings back %q", got)
	}
}
