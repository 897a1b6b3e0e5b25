// Package columnstore moves the files of ColumnStore's Storage Manager into a
// volume.
//
// # What an import does with a file
//
// It makes a file without a name, gives it its objects, lays the journals over
// them, sets the size, and only then gives it its name: whatever ends an import
// early leaves whole files and nothing else, and the next one goes on with those
// that have no name yet. The file keeps a fingerprint of the metadata and journals
// that it came from, in the extended attribute user.cistern.import, so that what
// changed since is noticed and nothing is imported twice.
//
// An object is adopted, by reference, when it lies in the bucket that the volume
// was formatted to adopt from, begins where a slot begins, and is no larger than
// one. Then no byte of it is copied; it is read once, since the volume needs the
// checksums of its blocks. Every other object, and what lies in Storage Manager's
// cache alone, is copied.
//
// # Promises
//
// A file is imported with exactly the bytes that Storage Manager would show, and
// zeros where it would show what is in no object and no journal; or it is left
// out and named. Nothing of Storage Manager's is changed.
//
// # Concurrency
//
// Import.Run works on several files at a time; its callbacks come from one
// goroutine at a time. Nothing outlives it.
package columnstore
