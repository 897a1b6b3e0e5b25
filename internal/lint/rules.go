package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// layers are the module's top folders from top to bottom. A package may import
// packages of lower layers, and of its own folder.
var layers = [][]string{
	{"cmd", "bench"},
	{"fuse"},
	{"binlogfs", "columnstore"},
	{"gateway"},
	{"journal", "cache", "metadata", "objstore"},
	{"internal"},
}

// providers are the object stores that only commands and tests may name.
var providers = []string{"objstore/s3", "objstore/gcs", "objstore/local", "objstore/mem"}

// layerOf returns the layer of a folder, a path within the module.
func layerOf(folder string) (int, error) {
	top, _, _ := strings.Cut(folder, "/")
	for i, names := range layers {
		if slices.Contains(names, top) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("folder %q belongs to no layer of the design; add it to the list in internal/lint", folder)
}

// forTests says whether a package exists for tests alone: those may import what
// they test.
func forTests(folder string) bool {
	return strings.HasSuffix(folder, "test") || folder == "internal/testenv" || folder == "internal/e2e"
}

// CheckImport says why the package in folder from must not import the one in
// folder to; nil when it may. Both are paths within the module; inTest means
// that the import stands in a test file.
func CheckImport(from, to string, inTest bool) error {
	if inTest || forTests(from) {
		return nil
	}
	if forTests(to) {
		return fmt.Errorf("%s imports %s, which is for tests", from, to)
	}
	fromLayer, err := layerOf(from)
	if err != nil {
		return err
	}
	toLayer, err := layerOf(to)
	if err != nil {
		return err
	}
	top := func(folder string) string { name, _, _ := strings.Cut(folder, "/"); return name }
	for _, p := range providers {
		if (to == p || strings.HasPrefix(to, p+"/")) && fromLayer != 0 && from != p && !strings.HasPrefix(from, p+"/") {
			return fmt.Errorf("%s imports the provider %s; only a command may choose one", from, to)
		}
	}
	switch {
	case fromLayer > toLayer:
		return fmt.Errorf("%s imports %s, which lies above it", from, to)
	case fromLayer == toLayer && top(from) != top(to):
		return fmt.Errorf("%s imports %s of the same layer; they must not know each other", from, to)
	}
	return nil
}

// CheckSource returns what a Go file has that it must not. folder and name are
// the file's place within the module; src is its text.
func CheckSource(folder, name string, src []byte) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path.Join(folder, name), src, 0)
	if err != nil {
		return nil, err
	}
	test := strings.HasSuffix(name, "_test.go")
	mayExit := test || file.Name.Name == "main"
	var found []string
	report := func(n ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%v: %s", fset.Position(n.Pos()), fmt.Sprintf(format, args...)))
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			report(f, "an init function; build what is needed where it is used")
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch call := pkg.Name + "." + selector.Sel.Name; {
		case strings.HasPrefix(call, "log.Fatal"):
			report(n, "%s; return an error", call)
		case call == "os.Exit" && !mayExit:
			report(n, "%s in a library; return an error", call)
		case (test || forTests(folder)) && folder != "internal/testenv" && skips(selector.Sel.Name):
			report(n, "%s; use testenv.SkipUnless, which fails where CI=true", call)
		}
		return true
	})
	return found, nil
}

// skips says whether a method of testing.TB leaves a test out.
func skips(method string) bool {
	return method == "Skip" || method == "Skipf" || method == "SkipNow"
}

// unfinished finds the words that mark work as unfinished. The pattern is put
// together so that this file does not contain them.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

// CheckText returns the lines of a text that carry such a word.
func CheckText(file, text string) []string {
	var found []string
	n := 0
	for line := range strings.Lines(text) {
		n++
		if word := unfinished.FindString(line); word != "" {
			found = append(found, fmt.Sprintf("%s:%d: %q marks unfinished work; finish it or open an issue", file, n, word))
		}
	}
	return found
}
