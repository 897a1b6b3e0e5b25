package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/harness"
)

// listed is what go list says about a package.
type listed struct {
	Dir, ImportPath                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

const module = "github.com/cisternfs/cistern"

func TestModule_Imports_GoDownOnly(t *testing.T) {
	for _, p := range packages(t) {
		from := folder(p.ImportPath)
		check := func(imports []string, inTest bool) {
			for _, to := range imports {
				if !strings.HasPrefix(to, module+"/") {
					continue
				}
				if err := CheckImport(from, folder(to), inTest); err != nil {
					t.Error(err)
				}
			}
		}
		check(p.Imports, false)
		check(p.TestImports, true)
		check(p.XTestImports, true)
	}
}

func TestModule_Packages_HaveADocFile(t *testing.T) {
	for _, p := range packages(t) {
		text, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s has no doc.go that says what it is for", folder(p.ImportPath))
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(text, []byte("// ")) {
			t.Errorf("%s/doc.go does not begin with the package comment", folder(p.ImportPath))
		}
	}
}

func TestModule_Sources_KeepTheRules(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			found, err := CheckSource(folder(p.ImportPath), name, src)
			if err != nil {
				t.Error(err)
			}
			for _, f := range found {
				t.Error(f)
			}
		}
	}
}

// TestModule_Texts_AreFinished reads every text that the project keeps, not
// only Go.
func TestModule_Texts_AreFinished(t *testing.T) {
	root := root(t)
	kinds := []string{".go", ".sh", ".md", ".lua", ".sql", ".yml", ".ini", ""}
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", ".cache"}, rel) || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(kinds, filepath.Ext(name)) || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files++
		if strings.HasPrefix(rel, "internal/lint/rules") {
			return nil // names the words
		}
		for _, f := range CheckText(rel, string(text)) {
			t.Error(f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Errorf("only %d files were read", files)
	}
}

func folder(importPath string) string { return strings.TrimPrefix(importPath, module+"/") }

func root(t *testing.T) string {
	t.Helper()
	root, err := harness.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// packages lists the module's packages, also those that don't compile just now.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=Dir,ImportPath,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("read go list's output: %v", err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list names only %d packages", len(all))
	}
	return all
}
