package storagemanager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cisternfs/cistern/objstore"
)

// Dir is the directory that Storage Manager's LocalStorage uses as its bucket:
// an object is a file of its key's name. It is only read.
type Dir struct{ path string }

// OpenDir opens a directory of objects. objstore.ErrNoBucket when there is none.
func OpenDir(path string) (*Dir, error) {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !st.IsDir():
		return nil, fmt.Errorf("%w: %s is not a directory", objstore.ErrNoBucket, path)
	case err != nil:
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	return &Dir{path}, nil
}

func (d *Dir) name(key string) (string, error) {
	if err := objstore.CheckKey(key); err != nil {
		return "", err
	}
	if strings.ContainsAny(key, "/\x00") || key == "." || key == ".." {
		return "", fmt.Errorf("%w: %q", objstore.ErrNotExist, key)
	}
	return filepath.Join(d.path, key), nil
}

func info(key string, st fs.FileInfo) objstore.Info {
	version := strconv.FormatInt(st.ModTime().UnixNano(), 10) + "-" + strconv.FormatInt(st.Size(), 10)
	return objstore.Info{Key: key, Size: st.Size(), Version: objstore.Version(version), Modified: st.ModTime()}
}

// classify gives an error of the operating system its class.
func classify(key string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", objstore.ErrNotExist, key)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", objstore.ErrPermission, err)
	}
	return err
}

// Get implements objstore.Store.
func (d *Dir) Get(_ context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	name, err := d.name(key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, objstore.Info{}, classify(key, err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is no file", objstore.ErrNotExist, key)
	}
	if err != nil {
		return nil, objstore.Info{}, errors.Join(err, f.Close())
	}
	if length < 0 || length > st.Size() {
		length = st.Size()
	}
	body := struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, length), f}
	return body, info(key, st), nil
}

// Put implements objstore.Store: nothing is stored here.
func (d *Dir) Put(_ context.Context, key string, _ io.ReadSeeker, _ int64, _ objstore.Condition) (objstore.Version, error) {
	return "", fmt.Errorf("put %s: Storage Manager's directory %s is only read", key, d.path)
}

// Head implements objstore.Store.
func (d *Dir) Head(_ context.Context, key string) (objstore.Info, error) {
	name, err := d.name(key)
	if err != nil {
		return objstore.Info{}, err
	}
	st, err := os.Stat(name)
	if err != nil {
		return objstore.Info{}, classify(key, err)
	}
	if !st.Mode().IsRegular() {
		return objstore.Info{}, fmt.Errorf("%w: %s is no file", objstore.ErrNotExist, key)
	}
	return info(key, st), nil
}

// List implements objstore.Store. It reads the whole directory for each page.
func (d *Dir) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	list, err := os.ReadDir(d.path)
	if err != nil {
		return nil, classify(d.path, err)
	}
	i, _ := slices.BinarySearchFunc(list, startAfter, func(e fs.DirEntry, after string) int {
		if e.Name() <= after {
			return -1
		}
		return 1
	})
	var page []objstore.Info
	for _, e := range list[i:] {
		if len(page) == objstore.PageSize(limit) {
			break
		}
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, classify(e.Name(), err)
		}
		page = append(page, info(e.Name(), st))
	}
	return page, ctx.Err()
}

// Delete implements objstore.Store: nothing of Storage Manager's is deleted.
func (d *Dir) Delete(_ context.Context, key string) error {
	return fmt.Errorf("delete %s: Storage Manager's directory %s is only read", key, d.path)
}
