package binlogfs

import (
	"fmt"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// Character sets as the protocol numbers them.
const (
	charsetUTF8   = 33
	charsetBinary = 63
)

// row is a result of one row.
func row(names []string, values []any) (*mysql.Result, error) {
	return rows(names, [][]any{values})
}

// rows is a result in the text protocol. The type of a column is that of its first
// value that is not NULL.
//
// The library's own builder takes its memory from a pool in which the columns of
// results lie that clients in this process have read and closed, as the puller
// does: names and types of an earlier result may come back in a later one.
func rows(names []string, values [][]any) (*mysql.Result, error) {
	r := &mysql.Resultset{Fields: make([]*mysql.Field, len(names)), FieldNames: make(map[string]int, len(names))}
	for i, name := range names {
		r.Fields[i] = &mysql.Field{Name: []byte(name), Type: mysql.MYSQL_TYPE_NULL, Charset: charsetUTF8}
	}
	for _, line := range values {
		if len(line) != len(names) {
			return nil, fmt.Errorf("build a result: %d values for the columns %q", len(line), names)
		}
		var out mysql.RowData
		for i, v := range line {
			if err := describeColumn(r.Fields[i], v); err != nil {
				return nil, err
			}
			text, err := mysql.FormatTextValue(v)
			if err != nil {
				return nil, fmt.Errorf("build a result: column %s: %w", names[i], err)
			}
			if v == nil {
				out = append(out, 0xfb) // NULL: "Text Resultset Row" of the protocol
			} else {
				out = append(out, mysql.PutLengthEncodedString(text)...)
			}
		}
		r.RowDatas = append(r.RowDatas, out)
	}
	return mysql.NewResult(r), nil
}

// describeColumn gives a column the type of a value, or makes sure that it has it.
func describeColumn(f *mysql.Field, v any) error {
	var typ byte
	var flag uint16
	charset := uint16(charsetBinary)
	switch v.(type) {
	case nil:
		return nil
	case string, []byte:
		typ, charset = mysql.MYSQL_TYPE_VAR_STRING, charsetUTF8
	case int, int64:
		typ, flag = mysql.MYSQL_TYPE_LONGLONG, mysql.BINARY_FLAG
	case uint8, uint16, uint32, uint64:
		typ, flag = mysql.MYSQL_TYPE_LONGLONG, mysql.BINARY_FLAG|mysql.UNSIGNED_FLAG
	default:
		return fmt.Errorf("build a result: column %s can't hold a %T", f.Name, v)
	}
	if f.Type != mysql.MYSQL_TYPE_NULL && f.Type != typ {
		return fmt.Errorf("build a result: column %s holds numbers and texts", f.Name)
	}
	f.Type, f.Flag, f.Charset = typ, flag, charset
	return nil
}
