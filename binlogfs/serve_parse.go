package binlogfs

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// tokenKind is what a piece of a statement is.
type tokenKind byte

const (
	tokenEnd    tokenKind = iota
	tokenWord             // keyword or name, as written
	tokenQuoted           // `name`
	tokenText             // 'text' or "text"
	tokenNumber
	tokenUser   // @variable
	tokenSystem // @@variable, without its scope
	tokenMark   // anything else, one character
)

// token is a piece of a statement.
type token struct {
	kind       tokenKind
	text       string
	start, end int // in the statement
}

// is says whether a token is a keyword.
func (t token) is(word string) bool { return t.kind == tokenWord && strings.EqualFold(t.text, word) }

func (t token) mark(c string) bool { return t.kind == tokenMark && t.text == c }

// value says whether a token can be a name or a value, however it is written.
func (t token) value() bool {
	return t.kind == tokenWord || t.kind == tokenQuoted || t.kind == tokenText || t.kind == tokenNumber
}

// statement is a statement that is being read, token by token.
type statement struct {
	sql    string
	tokens []token
	at     int
	depth  int // of the expression that is being evaluated
}

func isWordByte(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// parse cuts a statement into tokens. Comments go, and so does the end mark; the
// content of a versioned comment stays.
func parse(sql string) *statement {
	st := &statement{sql: sql}
	for at := 0; at < len(sql); {
		c := sql[at]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ';':
			at++
		case c == '#' || strings.HasPrefix(sql[at:], "-- "):
			at += lineEnd(sql[at:])
		case strings.HasPrefix(sql[at:], "/*!"):
			for at += 3; at < len(sql) && sql[at] >= '0' && sql[at] <= '9'; at++ {
			}
		case strings.HasPrefix(sql[at:], "/*"):
			if n := strings.Index(sql[at:], "*/"); n >= 0 {
				at += n + 2
			} else {
				at = len(sql)
			}
		case strings.HasPrefix(sql[at:], "*/"):
			at += 2
		default:
			t := nextToken(sql, at)
			st.tokens = append(st.tokens, t)
			at = t.end
		}
	}
	return st
}

func lineEnd(s string) int {
	if n := strings.IndexByte(s, '\n'); n >= 0 {
		return n
	}
	return len(s)
}

// nextToken reads the token at a place that is neither space nor comment.
func nextToken(sql string, at int) token {
	c := sql[at]
	switch {
	case c == '\'' || c == '"' || c == '`':
		text, end := quoted(sql, at)
		kind := tokenText
		if c == '`' {
			kind = tokenQuoted
		}
		return token{kind, text, at, end}
	case c == '@':
		return variable(sql, at)
	case isWordByte(c):
		end := at
		for end < len(sql) && (isWordByte(sql[end]) || sql[end] == '.' && c >= '0' && c <= '9') {
			end++
		}
		kind := tokenWord
		if _, err := strconv.ParseFloat(sql[at:end], 64); err == nil && c >= '0' && c <= '9' {
			kind = tokenNumber
		}
		return token{kind, sql[at:end], at, end}
	}
	return token{tokenMark, sql[at : at+1], at, at + 1}
}

// quoted reads a text with its quotes doubled or behind a backslash.
func quoted(sql string, at int) (text string, end int) {
	quote := sql[at]
	var b strings.Builder
	for at++; at < len(sql); at++ {
		switch c := sql[at]; {
		case c == '\\' && quote != '`' && at+1 < len(sql):
			at++
			if esc := strings.IndexByte("0nrtbZ", sql[at]); esc >= 0 {
				b.WriteByte("\x00\n\r\t\b\x1a"[esc])
			} else {
				b.WriteByte(sql[at])
			}
		case c == quote && at+1 < len(sql) && sql[at+1] == quote:
			at++
			b.WriteByte(c)
		case c == quote:
			return b.String(), at + 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), len(sql)
}

// variable reads @name, @@name or @@scope.name.
func variable(sql string, at int) token {
	end, kind := at+1, tokenUser
	if end < len(sql) && sql[end] == '@' {
		end, kind = end+1, tokenSystem
	}
	from := end
	if from < len(sql) && strings.IndexByte("'\"`", sql[from]) >= 0 {
		text, stop := quoted(sql, from)
		return token{kind, text, at, stop}
	}
	for end < len(sql) && (isWordByte(sql[end]) || sql[end] == '.') {
		end++
	}
	name := sql[from:end]
	if kind == tokenSystem {
		for _, scope := range []string{"global.", "session.", "local."} {
			if len(name) > len(scope) && strings.EqualFold(name[:len(scope)], scope) {
				name = name[len(scope):]
				break
			}
		}
	}
	return token{kind, name, at, end}
}

// peek is the next token.
func (st *statement) peek() token {
	if st.at < len(st.tokens) {
		return st.tokens[st.at]
	}
	return token{start: len(st.sql), end: len(st.sql)}
}

func (st *statement) next() token {
	t := st.peek()
	st.at++
	return t
}

// accept takes the next tokens when they are these keywords.
func (st *statement) accept(words ...string) bool {
	for i, w := range words {
		if st.at+i >= len(st.tokens) || !st.tokens[st.at+i].is(w) {
			return false
		}
	}
	st.at += len(words)
	return true
}

// oneOf takes the next token when it is one of these keywords.
func (st *statement) oneOf(words ...string) bool {
	for _, w := range words {
		if st.accept(w) {
			return true
		}
	}
	return false
}

func (st *statement) acceptMark(c string) bool {
	if st.peek().mark(c) {
		st.at++
		return true
	}
	return false
}

// done says that nothing is left.
func (st *statement) done() bool { return st.at >= len(st.tokens) }

// assign takes = or :=.
func (st *statement) assign() bool {
	st.acceptMark(":")
	return st.acceptMark("=")
}

// number takes an unsigned number.
func (st *statement) number() (int64, bool) {
	t := st.next()
	n, err := strconv.ParseInt(t.text, 10, 64)
	return n, t.kind == tokenNumber && err == nil
}

// wrong is the answer to a statement that can't be understood.
func (st *statement) wrong() error {
	text := st.sql
	if t := st.peek(); t.start < len(text) {
		text = text[t.start:]
	}
	if len(text) > 80 {
		text = text[:80]
	}
	return mysql.NewError(mysql.ER_PARSE_ERROR, "A binlog relay answers the statements of replication only; it does not understand this near '"+text+"'")
}

// like matches a name against a pattern of SHOW … LIKE, in any case.
func like(name, pattern string) bool {
	name, pattern = strings.ToLower(name), strings.ToLower(pattern)
	// star and mark: where to go on when a match after a % fails.
	n, p, star, mark := 0, 0, -1, 0
	for n < len(name) {
		literal := p
		if p+1 < len(pattern) && pattern[p] == '\\' {
			literal++
		}
		switch {
		case p < len(pattern) && literal == p && pattern[p] == '%':
			star, mark = p, n
			p++
		case p < len(pattern) && (literal == p && pattern[p] == '_' || pattern[literal] == name[n]):
			p, n = literal+1, n+1
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "%") == ""
}

// filter takes LIKE 'pattern', or WHERE column = 'value' and IN ('value', …).
func (st *statement) filter() (match func(name string) bool, err error) {
	if st.done() {
		return func(string) bool { return true }, nil
	}
	if st.accept("LIKE") {
		t := st.next()
		if t.kind != tokenText || !st.done() {
			return nil, st.wrong()
		}
		return func(name string) bool { return like(name, t.text) }, nil
	}
	if !st.accept("WHERE") || !st.next().value() {
		return nil, st.wrong()
	}
	if st.accept("LIKE") {
		t := st.next()
		return func(name string) bool { return like(name, t.text) }, nil
	}
	var names []string
	switch {
	case st.acceptMark("="):
		names = append(names, st.next().text)
	case st.accept("IN") && st.acceptMark("("):
		for !st.done() && !st.acceptMark(")") {
			if t := st.next(); t.kind == tokenText {
				names = append(names, t.text)
			}
		}
	}
	if len(names) == 0 || !st.done() {
		return nil, st.wrong()
	}
	return func(name string) bool {
		for _, n := range names {
			if strings.EqualFold(n, name) {
				return true
			}
		}
		return false
	}, nil
}

// moment takes a point in time: 'text', or NOW() with an interval before it.
func (st *statement) moment(now time.Time) (time.Time, bool) {
	t := st.next()
	if t.kind == tokenText {
		for _, layout := range []string{time.DateTime, time.DateOnly, time.RFC3339, "2006-01-02T15:04:05"} {
			if at, err := time.ParseInLocation(layout, t.text, time.UTC); err == nil {
				return at, true
			}
		}
		return time.Time{}, false
	}
	if !t.is("NOW") && !t.is("CURRENT_TIMESTAMP") && !t.is("UTC_TIMESTAMP") {
		return time.Time{}, false
	}
	if st.acceptMark("(") && !st.acceptMark(")") {
		return time.Time{}, false
	}
	if !st.acceptMark("-") {
		return now, true
	}
	if !st.accept("INTERVAL") {
		return time.Time{}, false
	}
	n, ok := st.number()
	unit, known := map[string]time.Duration{"SECOND": time.Second, "MINUTE": time.Minute, "HOUR": time.Hour, "DAY": 24 * time.Hour, "WEEK": 7 * 24 * time.Hour}[strings.ToUpper(st.next().text)]
	if !ok || !known || n > int64(1<<62/unit) {
		return time.Time{}, false
	}
	return now.Add(-time.Duration(n) * unit), true
}
