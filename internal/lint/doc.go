// Package lint enforces the project's own rules, as a test that reads every
// package of the module with go list and go/parser:
//
//   - imports go down the layers of docs/design.md only, the packages of one
//     layer don't know each other, and only commands name providers;
//   - no init functions, no exit from a library, no word that marks work as
//     unfinished;
//   - every package has a doc.go that says what it is for;
//   - no test skips itself except through testenv.SkipUnless.
//
// Concurrency: none.
package lint
