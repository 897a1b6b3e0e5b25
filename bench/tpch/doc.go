// Package tpch makes rows of TPC-H's lineitem table: its columns, value ranges
// and rules (clause 4.2.3 of the specification), drawn from a seed, so that a
// load can be repeated and checked anywhere. It does not aim at the reference
// generator's own bytes.
//
// A row is a line of 16 tab-separated columns, as LOAD DATA INFILE reads it:
//
//	orderkey partkey suppkey linenumber quantity extendedprice discount tax
//	returnflag linestatus shipdate commitdate receiptdate shipinstruct shipmode comment
//
// Concurrency: functions are pure; a Writer belongs to one goroutine.
package tpch
