package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// jsonWriters are the functions through which commands write JSON, and which of their
// arguments is the document.
func jsonWriters() map[string]int {
	return map[string]int{"app.printJSON": 0, "jsonList.add": 0, "salvageDir.write": 1}
}

// typed is this package with the types of its expressions.
type typed struct {
	files []*ast.File
	info  *types.Info
	set   *token.FileSet
}

// checkTypes reads the package from its sources, and what it imports from the compiler's
// export data.
func checkTypes(t *testing.T) *typed {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Name,GoFiles", ".")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	export := map[string]string{}
	p := &typed{set: token.NewFileSet(), info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l struct {
			ImportPath, Export, Name string
			GoFiles                  []string
		}
		if err := d.Decode(&l); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		export[l.ImportPath] = l.Export
		if l.Name != "main" {
			continue
		}
		for _, name := range l.GoFiles {
			f, err := parser.ParseFile(p.set, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			p.files = append(p.files, f)
		}
	}
	imports := importer.ForCompiler(p.set, "gc", func(path string) (io.ReadCloser, error) {
		if export[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(export[path])
	})
	if _, err := (&types.Config{Importer: imports}).Check("main", p.set, p.files, p.info); err != nil {
		t.Fatal(err)
	}
	return p
}

// documents are the types of all documents, by where they are written.
func (p *typed) documents(t *testing.T) map[string]types.Type {
	t.Helper()
	found := map[string]types.Type{}
	for _, f := range p.files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || p.info.Selections[sel] == nil {
				return true
			}
			recv := p.info.Selections[sel].Recv()
			if ptr, ok := recv.(*types.Pointer); ok {
				recv = ptr.Elem()
			}
			named, ok := recv.(*types.Named)
			if !ok {
				return true
			}
			if i, ok := jsonWriters()[named.Obj().Name()+"."+sel.Sel.Name]; ok {
				found[p.set.Position(call.Pos()).String()] = p.info.Types[call.Args[i]].Type
			}
			return true
		})
	}
	return found
}

// Words that say what a field is, by which the convention of docs/commands.md is checked.
var (
	snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	timeNames = regexp.MustCompile(`(^|_)(time|since|began|began_at|created|started|ended|expiry|made|at|mtime|ctime|btime|atime)$`)
	floats    = regexp.MustCompile(`(^|_)seconds$|_per_second$|_ratio$|^percent$`)
	otherUnit = regexp.MustCompile(`_(ms|us|ns|millis|micros|nanos|minutes|hours|days|kb|mb|gb|kib|mib|gib|size_human)$`)
	sizeNames = regexp.MustCompile(`(^|_)(size|bytes)$`)
)

// jsonWalk visits the fields of documents.
type jsonWalk struct {
	seen   map[types.Type]bool
	fields map[string]bool // their names
	wrong  []string
}

func (w *jsonWalk) bad(where, format string, args ...any) {
	w.wrong = append(w.wrong, where+": "+fmt.Sprintf(format, args...))
}

// walk visits a type; where is its name for a reader.
func (w *jsonWalk) walk(where string, t types.Type) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	if p, ok := t.(*types.Pointer); ok {
		w.walk(where, p.Elem())
		return
	}
	if own, _, _ := types.LookupFieldOrMethod(t, true, nil, "MarshalJSON"); own != nil {
		switch t.String() {
		case "time.Time", "main.text": // RFC 3339; a name
		default:
			w.bad(where, "%s says itself how it is written", t)
		}
		return
	}
	if t.String() == "time.Duration" {
		w.bad(where, "a duration: give it as seconds")
		return
	}
	switch u := t.Underlying().(type) {
	case *types.Slice:
		w.walk(where, u.Elem())
	case *types.Map:
		w.walk(where, u.Elem())
	case *types.Interface:
		if where != "journalItem.fields" {
			w.bad(where, "a value of any type")
		}
	case *types.Struct:
		name := where
		if n, ok := t.(*types.Named); ok {
			name = n.Obj().Name()
		}
		w.fieldsOf(name, u)
	}
}

func (w *jsonWalk) fieldsOf(where string, s *types.Struct) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if !f.Exported() && !f.Embedded() {
			continue
		}
		tag, tagged := reflect.StructTag(s.Tag(i)).Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-":
			continue
		case !tagged && f.Embedded():
			w.walk(where, f.Type())
			continue
		case !tagged || name == "":
			w.bad(where, "%s has no name of its own in JSON", f.Name())
			continue
		}
		w.fields[name] = true
		w.field(where+"."+name, name, options, f.Type())
		w.walk(where+"."+name, f.Type())
	}
}

// field checks a field's name against its type.
func (w *jsonWalk) field(where, name, options string, t types.Type) {
	p, pointer := t.(*types.Pointer)
	if pointer {
		t = p.Elem()
	}
	basic, _ := t.Underlying().(*types.Basic)
	is := func(kind types.BasicInfo) bool { return basic != nil && basic.Info()&kind != 0 }
	switch {
	case !snakeCase.MatchString(name):
		w.bad(where, "the name is not in snake_case")
	case otherUnit.MatchString(name):
		w.bad(where, "another unit than bytes and seconds")
	case timeNames.MatchString(name) && is(types.IsNumeric):
		w.bad(where, "a time that is a number")
	case t.String() == "time.Time" && strings.Contains(options, "omitempty") && !pointer:
		w.bad(where, "omitempty does nothing for a time: omitzero")
	case is(types.IsFloat) && !floats.MatchString(name):
		w.bad(where, "a fraction of what? Durations end with seconds, rates with _per_second")
	case sizeNames.MatchString(name) && !is(types.IsInteger):
		w.bad(where, "a size that is no whole number of bytes")
	}
}

// TestJSON_EveryDocument_KeepsTheConvention reads from the sources what every command
// writes as JSON: docs/commands.md says how names, times, sizes and durations are
// written, and names every field.
func TestJSON_EveryDocument_KeepsTheConvention(t *testing.T) {
	t.Parallel()
	found := checkTypes(t).documents(t)
	if len(found) < 35 {
		t.Errorf("only %d documents were found", len(found))
	}
	w := &jsonWalk{seen: map[types.Type]bool{}, fields: map[string]bool{}}
	for _, at := range slices.Sorted(maps.Keys(found)) {
		w.walk(at, found[at])
	}
	for _, wrong := range w.wrong {
		t.Error(wrong)
	}
	if len(w.fields) < 250 {
		t.Errorf("only %d fields were found", len(w.fields))
	}
	told := documentedWords(t)
	for _, name := range slices.Sorted(maps.Keys(w.fields)) {
		if !told[name] {
			t.Errorf("docs/ says nothing of the field %s", name)
		}
	}
	for _, p := range jsonParagraphs(t) {
		for _, word := range backticked.FindAllStringSubmatch(p, -1) {
			if name := word[1]; !w.fields[name] && !jsonValues()[name] {
				t.Errorf("docs/commands.md tells of a field %s that no document has: %.60s…", name, p)
			}
		}
	}
}

// jsonValues are the words in the paragraphs on JSON that are no fields: values and
// parts of commands.
func jsonValues() map[string]bool {
	values := map[string]bool{}
	for v := range strings.FieldsSeq("show list content attributes times ok failed denied unknown note version revision go group record spare synced find verify purge mark adopt") {
		values[v] = true
	}
	return values
}

var backticked = regexp.MustCompile("`([^`]+)`")

// documentedWords are the words in backticks in the documents on commands.
func documentedWords(t *testing.T) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	for _, name := range []string{"commands.md", "binlog.md", "columnstore.md"} {
		body, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range backticked.FindAllSubmatch(body, -1) {
			words[string(w[1])] = true
		}
	}
	return words
}

// jsonParagraphs are those of docs/commands.md that begin with JSON.
func jsonParagraphs(t *testing.T) (list []string) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("..", "..", "docs", "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.SplitSeq(string(body), "\n\n") {
		if strings.HasPrefix(p, "JSON") {
			list = append(list, p)
		}
	}
	if len(list) < 10 {
		t.Errorf("only %d paragraphs on JSON were found", len(list))
	}
	return list
}

// A walk that finds nothing wrong with these would find nothing.
func TestJSONWalk_BadFields(t *testing.T) {
	src := `package p
import "time"
type inner struct { OldName int }
type doc struct {
	inner
	A int ` + "`json:\"camelCase\"`" + `
	B int64 ` + "`json:\"started\"`" + `
	C time.Duration ` + "`json:\"wait\"`" + `
	D float64 ` + "`json:\"lag\"`" + `
	E float64 ` + "`json:\"lag_ms\"`" + `
	F string ` + "`json:\"size\"`" + `
	G any ` + "`json:\"anything\"`" + `
	H time.Time ` + "`json:\"made,omitempty\"`" + `
	I time.Time ` + "`json:\"began,omitzero\"`" + `
	J *time.Time ` + "`json:\"ended,omitempty\"`" + `
	K int64 ` + "`json:\"used_bytes\"`" + `
	L float64 ` + "`json:\"lag_seconds\"`" + `
}`
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{Importer: importer.ForCompiler(set, "source", nil)}).Check("p", set, []*ast.File{f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &jsonWalk{seen: map[types.Type]bool{}, fields: map[string]bool{}}
	w.walk("doc", pkg.Scope().Lookup("doc").Type())
	if len(w.wrong) != 9 {
		t.Error(errors.New(strings.Join(w.wrong, "\n")))
	}
}

func TestJSONName_OfWords(t *testing.T) {
	for in, want := range map[string]string{"clears set-id bits": "clears_set_id_bits", "inode": "inode"} {
		if got := jsonName(in); got != want || !snakeCase.MatchString(got) {
			t.Errorf("%q: %q", in, got)
		}
	}
}
