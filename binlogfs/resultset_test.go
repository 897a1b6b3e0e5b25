package binlogfs

import (
	"testing"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// A client in this process, as the puller is one, gives its results back to the
// library's pool, with their columns.
func TestRows_AfterAClientsResults_HasItsOwnColumns(t *testing.T) {
	for range 64 {
		r := mysql.NewResultset(2)
		for i := range r.Fields {
			r.Fields[i] = &mysql.Field{Name: []byte("left behind"), Type: mysql.MYSQL_TYPE_LONGLONG}
		}
		mysql.NewResult(r).Close()
	}
	r, err := rows([]string{"Variable_name", "Value"}, [][]any{{"server_id", nil}, {"server_id", "99"}})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"Variable_name", "Value"} {
		if f := r.Fields[i]; string(f.Name) != name || f.Type != mysql.MYSQL_TYPE_VAR_STRING || f.Charset != charsetUTF8 {
			t.Errorf("column %d is %s of type %d", i, f.Name, f.Type)
		}
	}
	if want := "\x09server_id\xfb"; string(r.RowDatas[0]) != want {
		t.Errorf("row %q, want %q", r.RowDatas[0], want)
	}
}

func TestRows_BadValues(t *testing.T) {
	for _, c := range [][][]any{{{1}, {"one"}}, {{1, 2}}, {{struct{}{}}}} {
		if _, err := rows([]string{"a"}, c); err == nil {
			t.Errorf("%v was taken", c)
		}
	}
}
