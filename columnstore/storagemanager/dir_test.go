package storagemanager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// A directory of objects is listed in pages and read by ranges, and never changed.
func TestDir_IsReadAndNeverChanged(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	for i := range 7 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("key%d", i)), []byte("0123456789"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "key9"), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for after := ""; ; {
		page, err := d.List(ctx, "key", after, 2)
		if err != nil || len(page) > 2 {
			t.Fatal(page, err)
		}
		if len(page) == 0 {
			break
		}
		for _, i := range page {
			found, after = append(found, i.Key), i.Key
		}
	}
	if fmt.Sprint(found) != "[key0 key1 key2 key3 key4 key5 key6]" {
		t.Errorf("listed %v", found)
	}
	p := make([]byte, 3)
	if err := objstore.ReadRange(ctx, d, "key3", 4, p); err != nil || string(p) != "456" {
		t.Errorf("%q, %v", p, err)
	}
	for _, key := range []string{"none", "key9", "../" + filepath.Base(dir) + "/key1"} {
		if _, err := d.Head(ctx, key); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := objstore.Create(ctx, d, "new", []byte("x")); err == nil {
		t.Error("an object was stored")
	}
	if err := d.Delete(ctx, "key0"); err == nil {
		t.Error("an object was deleted")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 8 {
		t.Errorf("%d files are left, %v", len(list), err)
	}
}
