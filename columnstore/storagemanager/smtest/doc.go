// Package smtest makes trees as ColumnStore's Storage Manager keeps them, with
// every shape that its files can have, and says what each file's bytes are.
//
// Nothing here is for concurrent use.
package smtest
