package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/binlogfs"
)

// fieldsOf are the names of a type's fields in JSON, in brackets where they may be left
// out, those of the types within included but for what is described elsewhere.
func fieldsOf(typ reflect.Type, elsewhere []string, into map[string]bool) {
	for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ.PkgPath() == "time" {
		return
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		tag, more, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
		case tag == "":
			into["`"+f.Name+"`"] = true
		case strings.Contains(more, "omit"):
			into["[`"+tag+"`]"] = true
		default:
			into["`"+tag+"`"] = true
		}
		if !slices.Contains(elsewhere, tag) {
			fieldsOf(f.Type, elsewhere, into)
		}
	}
}

// What docs/binlog.md says of the JSON of each command is what there is, no more and
// no less.
func TestBinlog_JSON_DocumentedFieldByField(t *testing.T) {
	text, err := os.ReadFile("../../docs/binlog.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## JSON\n")
	section, _, _ = strings.Cut(section, "\n## ")
	said := map[string][]string{}
	name := regexp.MustCompile("\\[?`[A-Za-z_0-9]+`\\]?")
	for _, item := range strings.Split(section, "\n- ")[1:] {
		head, fields, _ := strings.Cut(item, ": ")
		said[head] = name.FindAllString(fields, -1)
	}
	for head, c := range map[string]struct {
		value     any
		elsewhere []string // fields whose own are described elsewhere
		words     []string // that are no fields
	}{
		"`status`":                          {binlogfs.RelayStatus{}, []string{"pending", "replicas"}, []string{"`source`", "`stop`", "`start`", "`change`", "`failover`", "`flush`"}},
		"each of `pending` in it":           {binlogfs.PendingStatus{}, nil, nil},
		"each of `replicas`":                {binlogfs.Replica{}, nil, nil},
		"`list`":                            {binlogList{}, []string{"marks"}, nil},
		"`mark`, and each of `mark --list`": {binlogfs.KeepMark{}, nil, nil},
		"`show`":                            {binlogfs.FileInfo{}, nil, nil},
		"`events`, a list":                  {binlogEvent{}, nil, nil},
		"`find`":                            {binlogFound{}, nil, nil},
		"`verify`":                          {binlogVerified{}, nil, nil},
		"`purge`":                           {binlogPurged{}, []string{"files"}, []string{"`list`"}},
		"`pending`, a list":                 {binlogPending{}, nil, nil},
		"`adopt`":                           {binlogAdopted{}, nil, nil},
	} {
		fields := map[string]bool{}
		fieldsOf(reflect.TypeOf(c.value), c.elsewhere, fields)
		for f := range fields {
			if !slices.Contains(said[head], f) {
				t.Errorf("%s: %s is not in docs/binlog.md", head, f)
			}
		}
		for _, f := range said[head] {
			if !fields[f] && !slices.Contains(c.words, f) {
				t.Errorf("%s: docs/binlog.md has a field %s, and there is none", head, f)
			}
		}
	}
}
