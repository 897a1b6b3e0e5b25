package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/objstore"
)

const (
	// sectionEncryption is the section of settings for encrypted volumes.
	sectionEncryption = "Encryption"

	// maxSecret bounds a file with a key, a password or users, in bytes.
	maxSecret = 1 << 20
)

// keyRing reads the encryption keys, once: those of --encrypt-key-file, else of
// the environment, else of the configuration file. None is no error.
func (a *app) keyRing() (*gateway.Keys, error) {
	if a.keys != nil {
		return a.keys, nil
	}
	var list []*blockcodec.Key
	text, inEnv := a.lookup("CISTERN_ENCRYPT_KEY")
	files, err := a.keyFileNames()
	if err != nil {
		return nil, usage(err)
	}
	if inEnv && len(a.keyFiles) == 0 {
		files = nil
		for i, s := range strings.Split(text, ",") {
			k, err := blockcodec.ParseKey([]byte(s))
			if err != nil {
				return nil, usage(fmt.Errorf("CISTERN_ENCRYPT_KEY, key %d: %w", i+1, err))
			}
			list = append(list, k)
		}
	}
	for _, name := range files {
		k, err := readKeyFile(a.fileName(name))
		if err != nil {
			return nil, usage(err)
		}
		list = append(list, k)
	}
	a.keys = blockcodec.NewRing(list...)
	return a.keys, nil
}

// keyFileNames finds out which files hold keys.
func (a *app) keyFileNames() ([]string, error) {
	if len(a.keyFiles) > 0 {
		return a.keyFiles, nil
	}
	if list, ok := a.lookup("CISTERN_ENCRYPT_KEY_FILE"); ok {
		return filepath.SplitList(list), nil
	}
	set, err := a.sectionSettings(sectionEncryption, []string{"key_file"})
	if err != nil {
		return nil, err
	}
	return filepath.SplitList(set["key_file"]), nil
}

// readSecret reads a file that only its owner may get at; what says what it holds.
func readSecret(what, name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, localError(name, err))
	}
	defer f.Close() // only read
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, localError(name, err))
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s %s has mode %04o: others can get at it; `chmod 600 %s` ends that", what, name, mode, name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, localError(name, err))
	}
	return b, nil
}

// readKeyFile reads one key.
func readKeyFile(name string) (*blockcodec.Key, error) {
	b, err := readSecret("encryption key", name)
	if err != nil {
		return nil, err
	}
	k, err := blockcodec.ParseKey(b)
	if err != nil {
		return nil, fmt.Errorf("encryption key %s: %w; `head -c 32 /dev/urandom > FILE` makes a key", name, err)
	}
	return k, nil
}

// openVolume opens the store of a volume that there is, with the keys to what
// is encrypted in it.
func (a *app) openVolume(ctx context.Context, u objstore.URL) (*store, error) {
	a.sweepTemp()
	o, err := a.requests()
	if err != nil {
		return nil, err
	}
	return a.openVolumeWith(ctx, u, nil, o)
}

// openVolumeWith is openVolume with its own bounds of requests.
func (a *app) openVolumeWith(ctx context.Context, u objstore.URL, reg prometheus.Registerer, o requestOptions) (*store, error) {
	keys, err := a.keyRing()
	if err != nil {
		return nil, err
	}
	s, err := a.openStoreWith(ctx, u, false, reg, o)
	if err != nil {
		return nil, err
	}
	s.keys = keys
	unlocked, doc, err := gateway.OpenStore(ctx, s.Store, u.String(), keys, a.opener(o))
	if errors.Is(err, gateway.ErrKey) {
		return nil, usage(err)
	}
	if err != nil {
		return nil, err
	}
	s.Store, s.doc = unlocked, doc
	return s, a.withAdopted(ctx, s, doc)
}

// opener opens other volumes, in which a clone's bodies lie, with the same bounds.
func (a *app) opener(o requestOptions) gateway.Opener {
	return func(ctx context.Context, url string) (objstore.Store, error) {
		u, err := objstore.ParseURL(url)
		if err != nil {
			return nil, err
		}
		s, err := a.openStoreWith(ctx, u, false, nil, o)
		if err != nil {
			return nil, err
		}
		return s.Store, nil
	}
}
