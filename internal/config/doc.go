// Package config reads what users write: sizes, and settings from flags, the
// environment and an INI file.
//
// A setting is a command's flag. Where the flag was not given, the environment
// variable CISTERN_<FLAG> counts (CISTERN_CACHE_SIZE for --cache-size), and
// where that is not set, the key in the file's section: the flag's name, with _
// or - between its words. A key that is no flag, a section that is not known
// and a value that the flag refuses are errors that name all three. ${NAME} in
// the file stands for an environment variable.
//
// Settings that are no flags, such as a store's, are read by Section.
//
// Nothing here is kept: functions take what they read from and fill flags.
// Nothing here is for concurrent use.
package config
