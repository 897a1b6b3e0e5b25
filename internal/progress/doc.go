// Package progress shows how far long work is: a bar on a terminal, nothing
// elsewhere, where the commands' own lines tell when something is done.
//
// A Bar may be advanced by several goroutines; its owner calls Done once, which
// waits until the terminal has the last state.
package progress
