package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ModuleRoot returns the directory of the go.mod that the working directory
// belongs to.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("find the module: no go.mod above the working directory")
		}
		dir = parent
	}
}

// Build compiles a main package of this module, such as "./cmd/cistern", into
// dir and returns the binary's path. Go's build cache makes a second call cheap.
func Build(ctx context.Context, pkg, dir string) (string, error) {
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, filepath.Base(pkg))
	if _, err := Run(ctx, root, "go", "build", "-o", binary, pkg); err != nil {
		return "", fmt.Errorf("build %s: %w", pkg, err)
	}
	return binary, nil
}

// CommitNumber finds the commit's number in what `cistern sync` printed: the
// last word that is a number.
func CommitNumber(syncOutput string) (string, error) {
	words := strings.FieldsFunc(syncOutput, func(r rune) bool { return r < '0' || r > '9' })
	if len(words) == 0 {
		return "", fmt.Errorf("no commit number in what sync printed: %q", syncOutput)
	}
	return words[len(words)-1], nil
}
