// Package storagemanager reads and writes what ColumnStore's Storage Manager
// keeps: its metadata, its journals and its objects. It knows nothing of volumes.
//
// # Formats
//
//	<metadata_path>/<prefix>/<dirs>/<file>.meta   JSON, see Meta
//	<metadata_path>/<prefix>/OWNED                whoever made it has the prefix
//	<journal_path>/<prefix>/<key>.journal         changes that are not merged, see Journal
//	<cache path>/<prefix>/<key>                   whole objects
//	<bucket>/<S3 prefix><key>                     whole objects; with LocalStorage files of its path
//
// A prefix (data1, data2, …) is what one node owns at a time. A file is a list of
// objects:
//
//	{"version": "1", "revision": "1", "objects": [{"offset": "0", "length": "5242880", "key": "…"}, …]}
//
// Every value is a string; an empty list is "". The file's size is the end of the
// last object. A length above what the object holds is filled by the journal, or
// zeros; a length below cuts the object short. A key is
//
//	<uuid>_<offset>_<length>_<path with '/' as '~'>
//
// and its path can't be turned back where a name has a '~': paths come from the
// metadata. A journal is a header, whose length is 52 bytes, and entries:
//
//	{ "version" : "001", "max_offset" : "00000000014" } NUL
//	| offset in the object 8B | length 8B | bytes |   in the order of the host, which is little-endian
//
// The later entry wins. Nothing has a checksum or an end mark: an entry that the
// file does not hold whole is a torn tail.
//
// # Concurrency
//
// Functions keep nothing. A Dir is safe for concurrent use.
package storagemanager
