package tpch

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Lineitem is a row of the table. Money is in cents, rates in hundredths.
type Lineitem struct {
	OrderKey, PartKey, SuppKey int64
	LineNumber                 int
	Quantity                   int   // 1 to 50
	ExtendedPrice              int64 // cents: quantity × the part's retail price
	Discount                   int   // hundredths, 0 to 10
	Tax                        int   // hundredths, 0 to 8
	ReturnFlag                 string
	LineStatus                 string
	ShipDate                   time.Time
	CommitDate                 time.Time
	ReceiptDate                time.Time
	ShipInstruct               string
	ShipMode                   string
	Comment                    string
}

// The days that the specification names.
var (
	startDate   = time.Date(1992, 1, 1, 0, 0, 0, 0, time.UTC)
	currentDate = time.Date(1995, 6, 17, 0, 0, 0, 0, time.UTC)
	endDate     = time.Date(1998, 12, 31, 0, 0, 0, 0, time.UTC)
)

var (
	instructions = []string{"DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"}
	modes        = []string{"REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"}
	words        = []string{
		"accounts", "after", "against", "along", "among", "asymptotes", "bold", "carefully", "courts", "deposits",
		"even", "excuses", "express", "final", "fluffily", "foxes", "furiously", "haggle", "ideas", "instructions",
		"ironic", "nag", "packages", "pending", "pinto beans", "platelets", "quickly", "regular", "requests", "silent",
		"slyly", "special", "theodolites", "unusual", "wake",
	}
)

// RowsPerScale is about how many rows the table has at scale factor 1; parts and
// suppliers are as many as belong to the number of rows.
const RowsPerScale = 6_000_000

// Lineitems yields rows of whole orders, the last one cut short, from a seed.
func Lineitems(rows int, seed uint64) func(yield func(Lineitem) bool) {
	return func(yield func(Lineitem) bool) {
		r := rand.New(rand.NewPCG(seed, 0x7470))
		parts := max(200_000*int64(rows)/RowsPerScale, 200)
		suppliers := max(parts/20, 10)
		made := 0
		for order := int64(0); made < rows; order++ {
			// Of every 32 keys the first 8 are used.
			key := order/8*32 + order%8 + 1
			ordered := startDate.AddDate(0, 0, r.IntN(int(endDate.Sub(startDate).Hours()/24)-151+1))
			for line := range 1 + r.IntN(7) {
				if made == rows || !yield(lineOf(r, key, line+1, ordered, parts, suppliers)) {
					return
				}
				made++
			}
		}
	}
}

func lineOf(r *rand.Rand, order int64, line int, ordered time.Time, parts, suppliers int64) Lineitem {
	part := 1 + r.Int64N(parts)
	corner := r.Int64N(4)
	l := Lineitem{
		OrderKey: order, LineNumber: line, PartKey: part,
		SuppKey:      (part+corner*(suppliers/4+(part-1)/suppliers))%suppliers + 1,
		Quantity:     1 + r.IntN(50),
		Discount:     r.IntN(11),
		Tax:          r.IntN(9),
		ShipDate:     ordered.AddDate(0, 0, 1+r.IntN(121)),
		CommitDate:   ordered.AddDate(0, 0, 30+r.IntN(61)),
		ShipInstruct: instructions[r.IntN(len(instructions))],
		ShipMode:     modes[r.IntN(len(modes))],
	}
	l.ReceiptDate = l.ShipDate.AddDate(0, 0, 1+r.IntN(30))
	l.ExtendedPrice = int64(l.Quantity) * retailPrice(part)
	l.ReturnFlag, l.LineStatus = "N", "O"
	if !l.ReceiptDate.After(currentDate) {
		l.ReturnFlag = []string{"R", "A"}[r.IntN(2)]
	}
	if !l.ShipDate.After(currentDate) {
		l.LineStatus = "F"
	}
	l.Comment = comment(r)
	return l
}

// retailPrice of a part, in cents.
func retailPrice(part int64) int64 { return 90_000 + part/10%20_001 + 100*(part%1_000) }

// comment is 10 to 43 bytes of words.
func comment(r *rand.Rand) string {
	length := 10 + r.IntN(34)
	text := words[r.IntN(len(words))]
	for len(text) < length {
		text += " " + words[r.IntN(len(words))]
	}
	return text[:length]
}

// WriteLineitem writes rows as tab-separated lines.
func WriteLineitem(w io.Writer, rows int, seed uint64) error {
	out := bufio.NewWriterSize(w, 1<<20)
	for l := range Lineitems(rows, seed) {
		if _, err := out.WriteString(l.line()); err != nil {
			return fmt.Errorf("write lineitem rows: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write lineitem rows: %w", err)
	}
	return nil
}

func (l Lineitem) line() string {
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d.%02d\t0.%02d\t0.%02d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
		l.OrderKey, l.PartKey, l.SuppKey, l.LineNumber, l.Quantity,
		l.ExtendedPrice/100, l.ExtendedPrice%100, l.Discount, l.Tax, l.ReturnFlag, l.LineStatus,
		l.ShipDate.Format(time.DateOnly), l.CommitDate.Format(time.DateOnly), l.ReceiptDate.Format(time.DateOnly),
		l.ShipInstruct, l.ShipMode, l.Comment)
}

// CreateTable is the table's definition, for MariaDB.
const CreateTable = `CREATE TABLE lineitem (
	l_orderkey BIGINT NOT NULL, l_partkey BIGINT NOT NULL, l_suppkey BIGINT NOT NULL, l_linenumber INT NOT NULL,
	l_quantity DECIMAL(15,2) NOT NULL, l_extendedprice DECIMAL(15,2) NOT NULL, l_discount DECIMAL(15,2) NOT NULL, l_tax DECIMAL(15,2) NOT NULL,
	l_returnflag CHAR(1) NOT NULL, l_linestatus CHAR(1) NOT NULL,
	l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL, l_receiptdate DATE NOT NULL,
	l_shipinstruct CHAR(25) NOT NULL, l_shipmode CHAR(10) NOT NULL, l_comment VARCHAR(44) NOT NULL,
	PRIMARY KEY (l_orderkey, l_linenumber)
)`

// Query1 is the pricing summary report with the specification's own parameter.
const Query1 = `SELECT l_returnflag, l_linestatus,
	SUM(l_quantity) AS sum_qty, SUM(l_extendedprice) AS sum_base_price,
	SUM(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
	SUM(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
	AVG(l_quantity) AS avg_qty, AVG(l_extendedprice) AS avg_price, AVG(l_discount) AS avg_disc, COUNT(*) AS count_order
FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus`
