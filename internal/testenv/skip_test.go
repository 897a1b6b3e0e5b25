package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUnavailable_TheRunIsTold(t *testing.T) {
	name := filepath.Join(t.TempDir(), "not-tested")
	t.Setenv(notTested, name)
	done := false
	t.Run("left out", func(t *testing.T) {
		defer func() { done = t.Skipped() }()
		Unavailable(t, "no such server")
	})
	text, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(text), "TestUnavailable_TheRunIsTold/left_out: no such server\n") || !done {
		t.Errorf("%q, %v, skipped %v", text, err, done)
	}
}
